package app

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/weir-social/weir/internal/ops/health"
)

// rule is an alerting rule of Prometheus.
type rule struct {
	Alert         string            `yaml:"alert"`
	For           time.Duration     `yaml:"for"`
	KeepFiringFor time.Duration     `yaml:"keep_firing_for"`
	Labels        map[string]string `yaml:"labels"`
	Annotations   map[string]string `yaml:"annotations"`
}

func alertRules(t *testing.T) map[string]rule {
	t.Helper()
	raw, err := os.ReadFile("../deploy/prometheus/weir.rules.yml")
	require.NoError(t, err)
	var file struct {
		Groups []struct {
			Rules []rule `yaml:"rules"`
		} `yaml:"groups"`
	}
	require.NoError(t, yaml.Unmarshal(raw, &file))
	found := map[string]rule{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			require.NotContains(t, found, r.Alert)
			found[r.Alert] = r
		}
	}
	return found
}

// conditionSeverities returns the severities of the conditions in the source of package
// health.
func conditionSeverities(t *testing.T) map[string]string {
	t.Helper()
	severity := regexp.MustCompile(`(?:add\(|Name: )"(Weir\w+)", (?:Severity: )?(Warning|Critical)`)
	found := map[string]string{}
	for _, file := range []string{"conditions.go", "health.go"} {
		source, err := os.ReadFile("../internal/ops/health/" + file)
		require.NoError(t, err)
		for _, m := range severity.FindAllStringSubmatch(string(source), -1) {
			found[m[1]] = map[string]string{"Warning": health.Warning, "Critical": health.Critical}[m[2]]
		}
		for _, name := range regexp.MustCompile(`"Weir\w+"`).FindAllString(string(source), -1) {
			require.Contains(t, found, name[1:len(name)-1], "this test cannot parse how the condition is named")
		}
	}
	return found
}

// TestConditionsMatchRules checks that every condition, including those of features, has a rule
// with the same name, severity and delay, and an entry in the runbook.
func TestConditionsMatchRules(t *testing.T) {
	t.Parallel()
	conditions, fireAfter := conditionSeverities(t), health.FireAfter()
	want, got := map[string]string{}, map[string]string{}
	for name, severity := range conditions {
		want[name] = fmt.Sprint(severity, " after ", fireAfter[name])
	}
	cfg, err := ReadConfig()
	require.NoError(t, err)
	for _, f := range cfg.opened.Health {
		for _, c := range f.Conditions {
			require.NotContains(t, want, c.Name)
			want[c.Name] = fmt.Sprint(c.Severity, " after ", c.FireAfter)
		}
	}
	runbook, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	for name, r := range alertRules(t) {
		got[name] = fmt.Sprint(r.Labels["severity"], " after ", r.For)
		require.Equal(t, health.ResolveAfter, r.KeepFiringFor, name)
		require.NotEmpty(t, r.Annotations["summary"], name)
		require.NotEmpty(t, r.Annotations["description"], name)
		require.Regexp(t, `/docs/operations\.md#`+strings.ToLower(name)+`$`, r.Annotations["runbook_url"])
		require.Regexp(t, `(?m)^### `+name+`$`, string(runbook))
	}
	for name, severity := range want {
		require.Equal(t, severity, got[name], name)
	}
	for name := range fireAfter {
		require.Contains(t, conditions, name)
	}
	require.Len(t, fireAfter, len(conditions))
}
