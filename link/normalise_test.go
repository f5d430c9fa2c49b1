package link

import (
	_ "embed"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

//go:embed testdata/normalise.txt
var specification string

var escapedByte = regexp.MustCompile(`\\x[0-9A-F]{2}`)

type rule struct{ group, input, output, reason string }

// rules returns the rules of the specification.
func rules(t testing.TB) []rule {
	var all []rule
	group := ""
	for number, line := range strings.Split(specification, "\n") {
		if comment, ok := strings.CutPrefix(line, "# "); ok || line == "" {
			group = comment
			continue
		}
		input, output, ok := strings.Cut(line, "\t")
		require.True(t, ok, "line %d has no tab", number+1)
		r := rule{group: group, input: escapedByte.ReplaceAllStringFunc(input, func(s string) string {
			b, err := strconv.ParseUint(s[2:], 16, 8)
			require.NoError(t, err)
			return string([]byte{byte(b)})
		})}
		if r.reason, ok = strings.CutPrefix(output, "! "); !ok {
			r.output, r.reason = output, ""
		}
		all = append(all, r)
	}
	return all
}

func TestNormaliseFollowsTheSpecification(t *testing.T) {
	t.Parallel()
	all := rules(t)
	require.Greater(t, len(all), 150)
	seen := map[string]bool{}
	for _, r := range all {
		require.False(t, seen[r.input], "the specification contains %q twice", r.input)
		seen[r.input] = true
		got, err := Normalise(r.input)
		if r.reason != "" {
			require.ErrorContains(t, err, r.reason, "%s\n%q gave %q", r.group, r.input, got)
			require.Empty(t, got)
			continue
		}
		require.NoError(t, err, "%s\n%q", r.group, r.input)
		require.Equal(t, r.output, got, "%s\n%q", r.group, r.input)
		requireNormal(t, got)
	}
}

func TestLimitAppliesToTheNormalisedURL(t *testing.T) {
	t.Parallel()
	const root = "https://a.example/"
	for _, c := range []struct {
		rule, input, output string
	}{
		{"the maximum length", root + strings.Repeat("x", MaxBytes-len(root)), root + strings.Repeat("x", MaxBytes-len(root))},
		{"one byte more", root + strings.Repeat("x", MaxBytes-len(root)+1), ""},
		{"encoded bytes count", root + strings.Repeat("é", 400), ""},
		{"tracking parameters do not count", root + "?utm_source=" + strings.Repeat("x", 2*MaxBytes), root},
		{"the raw URL is bounded too", root + "?utm_source=" + strings.Repeat("x", maxRawBytes), ""},
		{"a label of 63 bytes", "https://" + strings.Repeat("a", 63) + ".example/", "https://" + strings.Repeat("a", 63) + ".example/"},
		{"a label of 64 bytes", "https://" + strings.Repeat("a", 64) + ".example/", ""},
		{"a host of more than 253 bytes", "https://" + strings.Repeat(strings.Repeat("a", 60)+".", 5) + "example/", ""},
	} {
		got, err := Normalise(c.input)
		require.Equal(t, c.output, got, c.rule)
		require.Equal(t, c.output == "", err != nil, c.rule)
	}
}

// requireNormal checks the guarantees of a normalised URL.
func requireNormal(t testing.TB, normal string) {
	again, err := Normalise(normal)
	require.NoError(t, err, "%q is refused the second time", normal)
	require.Equal(t, normal, again, "normalising is not idempotent")
	require.LessOrEqual(t, len(normal), MaxBytes)
	for i := range len(normal) {
		require.True(t, normal[i] > ' ' && normal[i] < 0x7F, "%q is not printable ASCII", normal)
	}
	u, err := url.Parse(normal)
	require.NoError(t, err)
	require.Contains(t, []string{"http", "https"}, u.Scheme)
	require.Nil(t, u.User)
	require.Contains(t, u.Hostname(), ".")
	require.True(t, strings.HasPrefix(u.Path, "/"))
}

func FuzzNormalise(f *testing.F) {
	for _, r := range rules(f) {
		f.Add(r.input)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		normal, err := Normalise(raw)
		if err != nil {
			require.Empty(t, normal)
			return
		}
		requireNormal(t, normal)
		a, err := parse(raw)
		require.NoError(t, err)
		require.NotEmpty(t, site(a.host))
	})
}
