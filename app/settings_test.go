package app

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSettingsAreReadFromAFile shows that a file sets what the environment does not, and what is
// said of a line that is none.
func TestSettingsAreReadFromAFile(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, ReadSettings(), "there need not be a file")
	for _, name := range []string{"WEIR_WATCH", "WEIR_LISTEN", "WEIR_OPS_TOKEN", "PGPASSWORD"} {
		t.Setenv(name, "") // restored after the test
		require.NoError(t, os.Unsetenv(name))
	}
	t.Setenv("WEIR_RETENTION", "72h")
	require.NoError(t, os.WriteFile(SettingsFile, []byte("# a comment\r\n\n WEIR_WATCH=alice.example, bob.example \nWEIR_RETENTION=48h\n"+
		"WEIR_LISTEN=\nWEIR_OPS_TOKEN='a $b \"c\" # d'\nPGPASSWORD=\"e=f\"\n"), 0o600))
	require.NoError(t, ReadSettings())
	require.Equal(t, "alice.example, bob.example", os.Getenv("WEIR_WATCH"))
	require.Equal(t, "72h", os.Getenv("WEIR_RETENTION"), "the environment takes precedence")
	require.Empty(t, os.Getenv("WEIR_LISTEN"))
	require.Equal(t, `a $b "c" # d`, os.Getenv("WEIR_OPS_TOKEN"))
	require.Equal(t, "e=f", os.Getenv("PGPASSWORD"))
	cfg, err := ReadConfig()
	require.NoError(t, err)
	from := map[string]string{}
	for _, v := range cfg.Effective() {
		from[v.Name] = v.From
	}
	require.Equal(t, SettingsFile, from["WEIR_WATCH"])
	require.Equal(t, "environment", from["WEIR_RETENTION"])
	require.Equal(t, "default", from["WEIR_WORKERS"])

	for text, problem := range map[string]string{
		"WEIR_WATCH":               "weir.env, line 1: expected NAME=value",
		"\nexport WEIR_WATCH=a":    `weir.env, line 2: "export WEIR_WATCH" is not a variable of weir`,
		"LD_PRELOAD=/tmp/other.so": `"LD_PRELOAD" is not a variable of weir`,
		"PATH=.":                   `"PATH" is not a variable of weir`,
		"DATABSE_URL=postgres://":  `"DATABSE_URL" is not a variable of weir`,
	} {
		_, err := parseSettings(text)
		require.ErrorContains(t, err, problem)
	}
}
