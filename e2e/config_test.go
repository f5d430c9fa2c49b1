package e2e

import (
	"fmt"
	"net"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// TestNoSecretIsPrinted shows that no secret is printed, whichever variable
// holds it and whatever is wrong.
func TestNoSecretIsPrinted(t *testing.T) {
	t.Parallel()
	n := network(t, 20)
	good := append(follower(n, schematest.NewURL(t)), "WEIR_IDENTIFIER="+n.Hub().Handle, "WEIR_PDS="+n.PDSURL(),
		"WEIR_APP_PASSWORD=s3cret-app", "WEIR_OPS_TOKEN=s3cret-token")
	password := regexp.MustCompile(`:([^:@]+)@`).FindStringSubmatch(good[0])[1]
	for name, env := range map[string][]string{
		"all is well":    good,
		"wrong password": append(good, "DATABASE_URL=postgres://u:s3cret@127.0.0.1:1/x"),
		"a DSN":          append(good, "DATABASE_URL=host=127.0.0.1 port=1 password=s3cret"),
		"in the query":   append(good, "DATABASE_URL=postgres://u@127.0.0.1:1/x?sslpassword=s3cret"),
		"broken URL":     append(good, "DATABASE_URL=postgres://u:s3cret@h:port/x"),
		"in other URLs": append(good, "WEIR_JETSTREAM=ws://u:s3cret@"+n.Address(), "WEIR_APPVIEW=http://u:s3cret@"+n.Address(),
			"WEIR_DIRECTORY=http://u:s3cret@"+n.Address()),
		"a misspelt name": append(good, "WEIR_APP_PASWORD=s3cret"),
		"half a login":    append(good, "WEIR_IDENTIFIER="),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, args := range []string{"config", "doctor --within 5s", "doctor --json --within 5s"} {
				stdout, stderr, _ := weir(t, env, strings.Fields(args)...)
				require.NotContains(t, stdout+stderr, "s3cret", args)
				require.NotContains(t, stdout+stderr, password, args)
			}
		})
	}
}

// TestSecretsAreMarked shows that every variable with a secret's name has the
// tag.
func TestSecretsAreMarked(t *testing.T) {
	t.Parallel()
	sounds := regexp.MustCompile(`PASSWORD|TOKEN|SECRET|WEBHOOK|KEY$`)
	fields := reflect.TypeFor[app.Config]()
	marked := 0
	for i := range fields.NumField() {
		tag := fields.Field(i).Tag
		if sounds.MatchString(tag.Get("env")) {
			require.Equal(t, "true", tag.Get("secret"), tag.Get("env"))
			marked++
		}
	}
	require.Positive(t, marked)
}

// TestConfigPrintsEveryVariable shows that every variable is printed with its
// value and its source.
func TestConfigPrintsEveryVariable(t *testing.T) {
	t.Parallel()
	out := succeed(t, []string{"WEIR_WORKERS=3", "WEIR_APP_PASSWORD=x", "WEIR_IDENTIFIER=y", "WEIR_IMAGE_BASE="}, "config")
	require.Regexp(t, `WEIR_WORKERS +environment +3\n`, out)
	require.Regexp(t, `WEIR_LEASE_TTL +default +10s\n`, out)
	require.Regexp(t, `WEIR_APP_PASSWORD +environment +\(set\)\n`, out)
	require.Regexp(t, `WEIR_IMAGE_BASE +environment *\n`, out)
	require.Equal(t, len(app.Variables())+1, strings.Count(out, "\n"), fmt.Sprint(out))
}

// TestConfigRefusesWhatServeRefuses shows that `weir config` fails for the same
// settings as `weir serve`, and still prints everything. An address in use by a
// running weir is no error.
func TestConfigRefusesWhatServeRefuses(t *testing.T) {
	t.Parallel()
	for name, wrong := range map[string]string{
		"WEIR_LISTEN": "nonsense", "WEIR_OPS_LISTEN": "127.0.0.1:99999", "WEIR_JETSTREAM": "nonsense", "WEIR_APPVIEW": "nonsense",
		"WEIR_IMAGE_BASE": "ftp://x", "WEIR_WATCH": "not a handle", "DATABASE_URL": "mysql://x/y", "WEIR_READ_DATABASE_URL": "mysql://x/z",
	} {
		stdout, stderr, code := weir(t, []string{name + "=" + wrong}, "config")
		require.Equal(t, 1, code, name)
		require.Contains(t, stderr, wrong)
		require.Contains(t, stdout, name)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	succeed(t, []string{"WEIR_LISTEN=" + taken.Addr().String(), "WEIR_OPS_LISTEN=" + taken.Addr().String()}, "config")
}

// TestConfigAcceptsTheVariablesOfTheTests shows that the binary accepts the
// variables of the tests that CONTRIBUTING.md lists: it inherits them.
func TestConfigAcceptsTheVariablesOfTheTests(t *testing.T) {
	t.Parallel()
	var env []string
	for _, name := range regexp.MustCompile("`(WEIR_[A-Z_]+)`").FindAllStringSubmatch(read(t, "CONTRIBUTING.md"), -1) {
		env = append(env, name[1]+"=")
	}
	require.Subset(t, env, []string{"WEIR_TEST_DATABASE_URL=", "WEIR_TESTDATA=", "WEIR_PG_BINARIES_URL="})
	succeed(t, env, "config")
}
