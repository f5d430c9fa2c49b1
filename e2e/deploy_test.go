package e2e

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caarlos0/env/v11"
	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/internal/crashpoint"
)

// project is the root folder.
const project = ".."

// secrets are the variables that .env must set before anything starts.
func secrets() map[string]string {
	return map[string]string{"POSTGRES_PASSWORD": "a", "POSTGRES_OWNER_PASSWORD": "b", "POSTGRES_APP_PASSWORD": "c",
		"WEIR_OPS_TOKEN": "d"}
}

// compose reads docker-compose.yml as `docker compose` does, with this in .env.
func compose(t *testing.T, env map[string]string) (*types.Project, error) {
	t.Helper()
	return composeIn(t, project, env)
}

func composeIn(t *testing.T, folder string, env map[string]string) (*types.Project, error) {
	t.Helper()
	var pairs []string
	for name, value := range env {
		pairs = append(pairs, name+"="+value)
	}
	options, err := cli.NewProjectOptions([]string{filepath.Join(folder, "docker-compose.yml")}, cli.WithEnv(pairs))
	require.NoError(t, err)
	return options.LoadProject(t.Context())
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(project, path))
	require.NoError(t, err)
	return string(text)
}

// requireCommand fails if the binary has no such subcommand.
func requireCommand(t *testing.T, name string) {
	t.Helper()
	require.Regexp(t, `(?m)^  weir `+regexp.QuoteMeta(name)+`\b`, succeed(t, nil, name, "--help"))
}

// known lists the WEIR_ variables that the binary reads.
func known() []string {
	return slices.DeleteFunc(app.Variables(), func(name string) bool { return !strings.HasPrefix(name, "WEIR_") })
}

// TestComposeRefusesToStartOpen shows that nothing starts if a secret is
// missing or empty, and that the error names the secret.
func TestComposeRefusesToStartOpen(t *testing.T) {
	t.Parallel()
	for secret := range secrets() {
		for _, wrong := range []func(map[string]string){
			func(env map[string]string) { delete(env, secret) },
			func(env map[string]string) { env[secret] = "" },
		} {
			env := secrets()
			wrong(env)
			_, err := compose(t, env)
			require.ErrorContains(t, err, "set "+secret+" in .env")
		}
	}
}

// TestComposeReadsTheSettings shows that Weir's processes get the settings that `weir init` writes, as
// Weir itself reads them, that the file need not exist, and that what is fixed inside of a container
// takes precedence.
func TestComposeReadsTheSettings(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"reader", "records", "archive"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			succeedIn(t, folder, nil, "init", kind)
			text, err := os.ReadFile(filepath.Join(folder, app.SettingsFile))
			require.NoError(t, err)
			for _, m := range regexp.MustCompile(`(?m)^#?([A-Z_]+)=`).FindAllStringSubmatch(string(text), -1) {
				require.Contains(t, app.Variables(), m[1])
			}
			lines := string(text) + "OTEL_SERVICE_NAME='a $b \"c\" # d'\nWEIR_WORKERS=7 \n"
			require.NoError(t, os.WriteFile(filepath.Join(folder, app.SettingsFile), []byte(lines), 0o600))
			ours := map[string]string{}
			for line := range strings.Lines(succeedIn(t, folder, nil, "config")) {
				if fields := strings.Fields(line); slices.Contains(fields, app.SettingsFile) {
					ours[fields[0]] = fields[len(fields)-1]
				}
			}
			require.Equal(t, "7", ours["WEIR_WORKERS"])
			require.NoError(t, os.WriteFile(filepath.Join(folder, "docker-compose.yml"), []byte(read(t, "docker-compose.yml")), 0o600))
			all, err := composeIn(t, folder, secrets())
			require.NoError(t, err)
			for _, name := range []string{"serve", "work"} {
				environment := all.Services[name].Environment
				require.Equal(t, `a $b "c" # d`, *environment["OTEL_SERVICE_NAME"])
				require.Equal(t, "7", *environment["WEIR_WORKERS"])
				require.Contains(t, *environment["DATABASE_URL"], "//weir_app@postgres:5432/weir")
				require.Equal(t, "0.0.0.0:8081", *environment["WEIR_OPS_LISTEN"])
				for name := range ours {
					require.Contains(t, environment, name)
				}
			}
		})
	}
	without, err := compose(t, secrets())
	require.NoError(t, err)
	for name, service := range without.Services {
		for variable, value := range service.Environment {
			require.True(t, !strings.HasPrefix(variable, "WEIR_") || slices.Contains(known(), variable), "%s of %s", variable, name)
			require.True(t, value == nil || !strings.Contains(*value, "${"), "%s of %s", variable, name)
		}
	}
}

// TestComposeServices checks the services, their users and their ports.
func TestComposeServices(t *testing.T) {
	t.Parallel()
	all, err := compose(t, secrets())
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"postgres", "migrate", "roles", "serve", "work"}, all.ServiceNames())
	pinned := regexp.MustCompile(`:v?\d+\.\d+`)
	for name, service := range all.Services {
		ours := service.Image == "weir:local"
		require.True(t, ours || pinned.MatchString(service.Image), "the image of %s is not pinned: %s", name, service.Image)
		require.Equal(t, name == "migrate", service.Build != nil, "only migrate builds the image: %s", name)
		require.Empty(t, service.ContainerName, "a service with a container name cannot be scaled")
		for _, port := range service.Ports {
			require.Equal(t, "127.0.0.1", port.HostIP, "%s is open to the world", name)
			require.NotEqual(t, "work", name, "its replicas would compete for the port")
		}
		if ours {
			require.Equal(t, types.PullPolicyNever, service.PullPolicy, "no registry has the image of %s", name)
			requireCommand(t, service.Command[0])
			user := "weir_app"
			if name == "migrate" {
				user = "weir_owner"
			} else {
				require.Equal(t, types.ServiceConditionCompletedSuccessfully, service.DependsOn["roles"].Condition)
			}
			require.Contains(t, *service.Environment["DATABASE_URL"], "//"+user+"@postgres:5432/weir")
		}
	}
	require.Equal(t, types.ServiceConditionHealthy, all.Services["migrate"].DependsOn["postgres"].Condition)
	require.Equal(t, types.ServiceConditionCompletedSuccessfully, all.Services["roles"].DependsOn["migrate"].Condition)
	require.Equal(t, all.Services["postgres"].Image, all.Services["roles"].Image)
	require.Equal(t, "weir", all.Name, "a renamed folder would get an empty volume")
	for _, name := range []string{"postgres", "roles"} {
		for _, mount := range all.Services[name].Volumes {
			if mount.Type == types.VolumeTypeBind {
				require.FileExists(t, mount.Source)
			}
		}
	}
}

// TestComposeHasConnectionsForItsWorkers shows that Postgres allows enough
// connections for the number of workers in .env.example, a backup and a person.
func TestComposeHasConnectionsForItsWorkers(t *testing.T) {
	t.Parallel()
	all, err := compose(t, secrets())
	require.NoError(t, err)
	one := all.Services["work"]
	require.Equal(t, 1, one.GetScale())
	number := func(in, pattern string) int {
		found := regexp.MustCompile(pattern).FindStringSubmatch(in)
		require.NotNil(t, found, pattern)
		n, err := strconv.Atoi(found[1])
		require.NoError(t, err)
		return n
	}
	allowed := number(strings.Join(all.Services["postgres"].Command, " "), `max_connections=(\d+)`)
	workers := number(read(t, ".env.example"), `up to (\d+); for more, raise max_connections`)
	cfg, err := env.ParseAsWithOptions[app.Config](env.Options{Environment: map[string]string{}})
	require.NoError(t, err)
	require.GreaterOrEqual(t, allowed, (workers+1)*(int(cfg.Connections())+1)+20)

	set := secrets()
	set["WORK_PROCESSES"] = strconv.Itoa(workers)
	all, err = compose(t, set)
	require.NoError(t, err)
	several := all.Services["work"]
	require.Equal(t, workers, several.GetScale())
}

// TestRiverUIReadsItsVariables shows that the variables of a separate River UI
// have the names that its image reads, the file holds no secrets, it connects as
// the role that owns nothing, and it is the version that Weir contains.
func TestRiverUIReadsItsVariables(t *testing.T) {
	t.Parallel()
	text := read(t, "riverui.env")
	documented := []string{"DATABASE_URL", "PORT", "PATH_PREFIX", "RIVER_HOST", "RIVER_BASIC_AUTH_USER", "RIVER_BASIC_AUTH_PASS",
		"RIVER_LOG_LEVEL", "RIVER_LOG_FORMAT", "RIVER_JOB_LIST_HIDE_ARGS_BY_DEFAULT", "PGPASSWORD"}
	require.Contains(t, text, "\nDATABASE_URL=postgres://weir_app@postgres:5432/weir")
	version := regexp.MustCompile(`riverui v(\S+)`).FindStringSubmatch(read(t, "go.mod"))
	require.Contains(t, text, "ghcr.io/riverqueue/riverui:"+version[1])
	for line := range strings.Lines(text) {
		name, value, set := strings.Cut(strings.TrimSpace(line), "=")
		if strings.HasPrefix(line, "#") {
			continue
		}
		require.Contains(t, documented, name)
		require.True(t, set && value != "", line)
		require.NotContains(t, name, "PASS", "a secret is in the file")
	}
}

// TestEnvExampleIsComplete shows that .env.example names every secret, sets no
// password, and names no setting that does not exist.
func TestEnvExampleIsComplete(t *testing.T) {
	t.Parallel()
	given := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^#?([A-Z][A-Z_]*)=(.*)$`).FindAllStringSubmatch(read(t, ".env.example"), -1) {
		given[m[1]] = m[2]
		require.True(t, !strings.HasPrefix(m[1], "WEIR_") || slices.Contains(known(), m[1]), m[1])
	}
	for secret := range secrets() {
		value, named := given[secret]
		require.True(t, named, secret)
		require.True(t, !strings.Contains(secret, "PASS") || value == "", secret)
	}
	require.Contains(t, strings.Fields(read(t, ".gitignore")), ".env", "the passwords would be committed")
	require.Contains(t, strings.Fields(read(t, ".dockerignore")), ".env", "the passwords would be in a layer of the build")
}

// TestImageHoldsOneStaticBinary shows that the image runs one static binary as
// an unprivileged user.
func TestImageHoldsOneStaticBinary(t *testing.T) {
	t.Parallel()
	text := read(t, "Dockerfile")
	command := "CGO_ENABLED=0 go " + strings.Join(buildArguments("/weir", "./cmd/weir"), " ")
	require.Contains(t, text, strings.Replace(command, "-ldflags=-s -w "+crashpoint.Linked, `-ldflags="-s -w"`, 1),
		"the tests and the image build differently")
	require.NotContains(t, text, "# syntax=", "a frontend would be downloaded needlessly")
	require.Regexp(t, `(?m)^FROM golang:\d+\.\d+-\w+ AS build$`, text)
	stage := text[strings.LastIndex(text, "\nFROM "):]
	require.Contains(t, stage, "FROM scratch\n")
	require.Regexp(t, `(?m)^USER [1-9]\d*:[1-9]\d*$`, stage)
	require.Regexp(t, `(?m)^HEALTHCHECK .* CMD \["/usr/local/bin/weir", "healthcheck"\]$`, stage)
	require.Regexp(t, `(?m)^ENTRYPOINT \["/usr/local/bin/weir"\]$`, stage)
	want := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, "go.mod"))[1]
	require.Contains(t, text, "FROM golang:"+want+"-")
	if runtime.GOOS == "linux" {
		static(t, binary)
	}
}

// static fails if the program needs a library, or a loader to find one.
func static(t *testing.T, path string) {
	t.Helper()
	f, err := elf.Open(path)
	require.NoError(t, err)
	defer f.Close()
	libraries, err := f.ImportedLibraries()
	require.NoError(t, err)
	require.Empty(t, libraries)
	for _, program := range f.Progs {
		require.NotEqual(t, elf.PT_INTERP, program.Type)
	}
}

// TestSystemdUnits shows that systemd reads the units without a warning, their
// variables and commands exist, and they are hardened.
func TestSystemdUnits(t *testing.T) {
	t.Parallel()
	units, err := filepath.Glob(filepath.Join(project, "deploy/systemd/*.service"))
	require.NoError(t, err)
	require.Len(t, units, 2)
	for _, unit := range units {
		text := read(t, filepath.Join("deploy/systemd", filepath.Base(unit)))
		command := regexp.MustCompile(`(?m)^ExecStart=/usr/local/bin/weir (\w+)$`).FindStringSubmatch(text)
		require.NotNil(t, command)
		requireCommand(t, command[1])
		for _, setting := range []string{
			"Type=notify", "WatchdogSec=", "Restart=always", "DynamicUser=yes", "User=weir", "StateDirectory=weir weir/archive",
			"ProtectSystem=strict", "NoNewPrivileges=yes", "CapabilityBoundingSet=",
		} {
			require.Contains(t, text, "\n"+setting, unit)
		}
		require.NotContains(t, text, "\nProcSubset=pid", "ProcSubset=pid hides the start time of the process and the length of the accept queue")
		require.Contains(t, text, "\nAssertPathExists=/etc/weir/weir.env\n", "the error must name the missing file")
		require.Contains(t, text, "\nEnvironmentFile=/etc/weir/weir.env\n")
		for _, variable := range regexp.MustCompile(`WEIR_[A-Z_]+`).FindAllString(text, -1) {
			require.Contains(t, known(), variable)
		}
		verify(t, filepath.Base(unit), text)
	}
}

// verify has systemd check a unit, if systemd is installed.
func verify(t *testing.T, name, text string) {
	t.Helper()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Logf("no systemd-analyze: only the text of %s is checked", name)
		return
	}
	here := filepath.Join(t.TempDir(), strings.Replace(name, "@.", "@1.", 1))
	require.NoError(t, os.WriteFile(here, []byte(strings.ReplaceAll(text, "/usr/local/bin/weir", binary)), 0o600))
	out, err := exec.Command(analyze, "verify", "--man=no", "--recursive-errors=no", here).CombinedOutput()
	require.NoError(t, err, string(out))
	require.NotContains(t, string(out), filepath.Base(here), "systemd warns")
}
