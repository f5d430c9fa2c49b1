package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/schema"
)

const (
	rulesFile     = "../deploy/prometheus/weir.rules.yml"
	dashboardFile = "../deploy/grafana/weir.json"
)

// tool finds one of Prometheus's binaries; `make prometheus` provides them.
func tool(t *testing.T, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	path, err := filepath.Abs("../.weir/prometheus/usr/bin/" + name)
	require.NoError(t, err)
	require.FileExists(t, path, "run `make prometheus`, which provides it")
	return path
}

// TestRules runs the unit tests of the alerts.
func TestRules(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), tool(t, "promtool"), "test", "rules",
		strings.Replace(rulesFile, ".yml", "_test.yml", 1)).CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestLimitsAgreeEverywhere shows that the limits are the same in the metrics
// that the rules compare with, in /health, and in the alerts of the workers.
func TestLimitsAgreeEverywhere(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	database := schematest.NewURL(t)
	serve := start(t, append(follower(network(t, 50), database), "WEIR_LAG_LIMIT=7m", "WEIR_QUEUE_LIMIT=77", "WEIR_DATABASE_LIMIT=1000",
		"WEIR_AUDIT_INTERVAL=0", "WEIR_ALERT_INTERVAL=1s"), "serve")
	at := serve.opsURL(t)
	_, page := getOps(t, at+"/metrics", "")
	for _, line := range []string{
		"weir_lag_limit_seconds 420", "weir_queue_limit_jobs 77", "weir_database_limit_bytes 1000", "weir_audit_limit_seconds +Inf",
	} {
		require.Contains(t, page, "\n"+line+"\n")
	}
	report, _ := reported(t, at)
	require.Contains(t, fmt.Sprint(report.Conditions), "WeirDatabaseLarge")
	pool := open(t, database)
	execute(t, database,
		`INSERT INTO river_job (args, kind, max_attempts, priority, queue)
		SELECT '{}', 'of_nobody', 1, 1, 'elsewhere' FROM generate_series(1, 78);
		INSERT INTO river_queue (name, updated_at) VALUES ('elsewhere', now())`)
	eventually.True(t, func() bool {
		return count(t, pool, `
			SELECT count(*) FROM alerts WHERE name = 'WeirDatabaseLarge' AND fired_at IS NOT NULL OR name = 'WeirQueueDeep'
			    AND component = 'elsewhere'`) == 2
	}, 50*time.Millisecond)
}

// TestHighestQueueLimitCanBePassed shows that the job count can exceed the
// highest queue limit allowed.
func TestHighestQueueLimitCanBePassed(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	database := schematest.NewURL(t)
	limited := func(limit int) []string {
		return []string{"DATABASE_URL=" + database, fmt.Sprint("WEIR_QUEUE_LIMIT=", limit)}
	}
	fill := func(jobs int) {
		execute(t, database, fmt.Sprintf(`
			INSERT INTO river_job (args, kind, max_attempts, priority, queue) SELECT '{}', 'of_nobody', 1, 1, 'process'
			FROM generate_series(1, %d)`, jobs))
	}
	execute(t, database, `
		INSERT INTO projections (name, collections, kind, queue, tables)
		VALUES ('links', '{app.bsky.feed.post}', 'process_posts', 'process', '{}')`)
	const highest = schema.CountedJobs
	fill(highest)
	stdout, _, _ := weir(t, limited(highest), "status")
	require.NotContains(t, stdout, "WeirQueueDeep")
	fill(1)
	stdout, _, _ = weir(t, limited(highest), "status")
	require.Contains(t, stdout, "WeirQueueDeep 50001 or more jobs wait in queue process")
	_, stderr, code := weir(t, limited(highest+1), "status")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "WEIR_QUEUE_LIMIT must be 2 to 50000")
}

// dashboard is the part of Grafana's JSON that is checked.
type dashboard struct {
	SchemaVersion int `json:"schemaVersion"`
	Templating    struct {
		List []struct {
			Name  string          `json:"name"`
			Type  string          `json:"type"`
			Query json.RawMessage `json:"query"`
		} `json:"list"`
	} `json:"templating"`
	Panels []panel `json:"panels"`
}

type panel struct {
	ID         int    `json:"id"`
	Type       string `json:"type"`
	Title      string `json:"title"`
	Datasource source `json:"datasource"`
	Grid       struct {
		H, W, X, Y int
	} `json:"gridPos"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
	Targets []struct {
		Expr       string `json:"expr"`
		Datasource source `json:"datasource"`
	} `json:"targets"`
}

type source struct {
	UID string `json:"uid"`
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	raw, err := os.ReadFile(dashboardFile)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &d))
	return d
}

// TestDashboardIsLaidOut shows that the panels are in rows without overlaps,
// "Expect zero" first, and that every panel has a unit, a question, and the
// data source of the variable.
func TestDashboardIsLaidOut(t *testing.T) {
	t.Parallel()
	d := readDashboard(t)
	require.GreaterOrEqual(t, d.SchemaVersion, 39)
	require.Equal(t, "datasource", d.Templating.List[0].Type)
	require.Equal(t, "Expect zero", d.Panels[0].Title)
	ids, cells := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		require.False(t, ids[p.ID], "%s has the id of another panel", p.Title)
		ids[p.ID] = true
		require.LessOrEqual(t, p.Grid.X+p.Grid.W, 24, p.Title)
		for x := p.Grid.X; x < p.Grid.X+p.Grid.W; x++ {
			for y := p.Grid.Y; y < p.Grid.Y+p.Grid.H; y++ {
				require.Empty(t, cells[[2]int{x, y}], "%s overlaps another panel", p.Title)
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		require.NotEmpty(t, p.FieldConfig.Defaults.Unit, p.Title)
		require.NotEmpty(t, p.Targets, p.Title)
		require.Equal(t, "${datasource}", p.Datasource.UID, p.Title)
		for _, target := range p.Targets {
			require.Equal(t, "${datasource}", target.Datasource.UID, p.Title)
		}
	}
}

// server is a Prometheus that scrapes one process every five seconds, which is also how long it waits.
type server struct{ url string }

// prometheusAddress is the listener's address in Prometheus's log.
var prometheusAddress = regexp.MustCompile(`msg="?Listening on"? address=(127\.0\.0\.1:[1-9]\d*)`)

func startPrometheus(t *testing.T, scraped string) server {
	t.Helper()
	dir := t.TempDir()
	rules, err := filepath.Abs(rulesFile)
	require.NoError(t, err)
	config := fmt.Sprintf("global: {scrape_interval: 5s, scrape_timeout: 5s, evaluation_interval: 5s}\nrule_files: [%q]\nscrape_configs: "+
		"[{job_name: weir, static_configs: [{targets: [%q]}]}]\n",
		rules, strings.TrimPrefix(scraped, "http://"))
	require.NoError(t, os.WriteFile(dir+"/prometheus.yml", []byte(config), 0o600))
	cmd := exec.Command(tool(t, "prometheus"), "--config.file="+dir+"/prometheus.yml", "--storage.tsdb.path="+dir+"/data",
		"--web.listen-address=127.0.0.1:0")
	var out lockedBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill() // the process may have ended already
		cmd.Wait()         // the process was killed
		if t.Failed() {
			t.Log(tail(out.String(), 4000))
		}
	})
	var s server
	eventually.True(t, func() bool {
		found := prometheusAddress.FindStringSubmatch(out.String())
		if found != nil {
			s.url = "http://" + found[1]
		}
		return found != nil
	}, 20*time.Millisecond, "Prometheus does not listen")
	eventually.True(t, func() bool { return s.evaluates(`weir_build_info`) == nil }, 50*time.Millisecond, "Prometheus does not scrape")
	return s
}

// ask reads a response of Prometheus's API into a value.
func (s server) ask(path string, into any) error {
	response, err := http.Get(s.url + path)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, raw)
	}
	return json.Unmarshal(raw, into)
}

// evaluates returns nil if an expression returns a number.
func (s server) evaluates(expr string) error {
	var response struct {
		Data struct {
			Result []struct {
				Value [2]any `json:"value"`
			} `json:"result"`
		} `json:"data"`
	}
	if err := s.ask("/api/v1/query?query="+url.QueryEscape(expr), &response); err != nil {
		return err
	}
	for _, r := range response.Data.Result {
		if r.Value[1] != "NaN" {
			return nil
		}
	}
	return fmt.Errorf("no data: %s", expr)
}

var (
	selector = regexp.MustCompile(`\b((?:weir|process|go)_[a-z0-9_]+)(\{[^}]*\})?`)
	matcher  = regexp.MustCompile(`(\w+)=~?"([^"]*)"`)
)

// selectors returns the series that an expression reads, one selector for each
// value: state=~"a|b" yields two.
func selectors(expr string) (found []string) {
	for _, m := range selector.FindAllStringSubmatch(expr, -1) {
		labels := matcher.FindAllStringSubmatch(m[2], -1)
		if len(labels) == 0 {
			found = append(found, m[1])
		}
		for _, label := range labels {
			for word := range strings.SplitSeq(label[2], "|") {
				found = append(found, fmt.Sprintf(`%s{%s=~%q}`, m[1], label[1], word))
			}
		}
	}
	return found
}

// TestAlertsAndDashboardReadMetricsThatExist has a real Prometheus scrape a running
// Weir. Every panel has data, every rule can be evaluated, and Weir exposes every
// metric and label value in their expressions.
func TestAlertsAndDashboardReadMetricsThatExist(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n := followNetwork(t, 20)
	database := schematest.NewURL(t)
	pool := open(t, database)
	n.SetRate(simnet.Rate{Calls: 100_000})
	env := append(follower(n, database), "WEIR_DEAD_LETTER_LIMITS=app.bsky.feed.post=100", "WEIR_WATCH="+n.Hub().Handle)
	weir := start(t, env, "serve")
	at := weir.opsURL(t)
	stop := live(t, n, 100)
	defer stop()
	_, err := pool.Exec(t.Context(), `INSERT INTO river_queue (name, paused_at, updated_at) VALUES ('elsewhere', now(), now())`)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(),
		`INSERT INTO audits (started_at, ended_at, from_at, to_at, accounts, failures, records, missing, extra, stale, score, repaired)
		VALUES (now(), now(), now(), now(), 20, 0, 1000, 0, 0, 0, 1, true)`)
	require.NoError(t, err)
	s := startPrometheus(t, at)

	var wanted, asked []string
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			expr := strings.NewReplacer("$__rate_interval", "1m", "$stream", ".*", "$job", ".*").Replace(target.Expr)
			wanted, asked = append(wanted, expr), append(asked, expr)
		}
	}
	var rules struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Query, Health string }
			}
		}
	}
	wanted = append(wanted, `ALERTS{alertname="WeirQueuePaused"}`)
	eventually.True(t, func() bool {
		require.NoError(t, s.ask("/api/v1/rules", &rules))
		for _, r := range rules.Data.Groups[0].Rules {
			if r.Health != "ok" {
				return false
			}
		}
		return true
	}, 100*time.Millisecond, "%+v", rules)
	for _, r := range rules.Data.Groups[0].Rules {
		asked = append(asked, r.Query)
	}
	require.Greater(t, len(asked), 60)

	succeed(t, env, "watch", "sync") // makes calls and jobs after the first scrape
	for _, expr := range wanted {
		eventually.True(t, func() bool { return s.evaluates(expr) == nil }, 50*time.Millisecond, expr)
	}
	page := measured(t, at, "")
	for _, expr := range asked {
		for _, series := range selectors(expr) {
			if !inHelp(page, series) {
				eventually.True(t, func() bool { return s.evaluates(series) == nil }, 50*time.Millisecond, "no series or help text has %s, of %s",
					series, expr)
			}
		}
	}
}

// inHelp reports whether the help of a selector's metric names its label value.
// A test cannot produce some values, such as panicked.
func inHelp(page, series string) bool {
	name, labels, _ := strings.Cut(series, "{")
	word := matcher.FindStringSubmatch(labels)
	help := regexp.MustCompile(`(?m)^# HELP ` + strings.TrimSuffix(name, "_count") + ` (.*)$`).FindStringSubmatch(page)
	return word != nil && help != nil && regexp.MustCompile(`\b`+regexp.QuoteMeta(word[2])+`\b`).MatchString(help[1])
}
