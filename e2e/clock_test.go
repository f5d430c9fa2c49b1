package e2e

import (
	native "encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
)

// clockFile is the variable that names the file with a wall clock's error.
const clockFile = "WALL_CLOCK_STEP"

// stepping is added to package time. It reads the wall clock's error in
// nanoseconds from a file that the test shares.
const stepping = `package time

import (
	"sync/atomic"
	"syscall"
	"unsafe"
)

var wallStep = mapWallStep()

func mapWallStep() *int64 {
	path, ok := syscall.Getenv("` + clockFile + `")
	if !ok {
		return new(int64)
	}
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		panic("open the step of the wall clock: " + err.Error())
	}
	shared, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic("map the step of the wall clock: " + err.Error())
	}
	return (*int64)(unsafe.Pointer(&shared[0]))
}

func stepped(sec int64, nsec int32) (int64, int32) {
	at := sec*1e9 + int64(nsec) + atomic.LoadInt64(wallStep)
	return at / 1e9, int32(at % 1e9)
}
`

// steppable is the real binary with a changed package time: its wall clock can
// be stepped while it runs, as NTP or a resumed virtual machine does. The
// monotonic clock is unchanged.
var steppable = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", err
	}
	library := filepath.Join(strings.TrimSpace(string(out)), "src", "time")
	source, err := os.ReadFile(filepath.Join(library, "time.go"))
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(binary)
	overlay := map[string]map[string]string{"Replace": {
		filepath.Join(library, "time.go"): filepath.Join(dir, "time.go"),
		filepath.Join(library, "step.go"): filepath.Join(dir, "step.go"),
	}}
	const now, step = "\nfunc Now() Time {\n\tsec, nsec, mono := runtimeNow()\n", "\tsec, nsec = stepped(sec, nsec)\n"
	if strings.Count(string(source), now) != 1 {
		return "", fmt.Errorf("time.Now of %s does not begin with %q: change how this test steps it", library, now)
	}
	described, err := json.Marshal(overlay)
	if err != nil {
		return "", err
	}
	for name, content := range map[string]string{
		"time.go": strings.Replace(string(source), now, now+step, 1), "step.go": stepping, "overlay.json": string(described),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil { // readable by everyone
			return "", err
		}
	}
	program := filepath.Join(dir, "weir-stepped")
	return program, build(program, "../cmd/weir", "-overlay", filepath.Join(dir, "overlay.json"))
})

// wallClock is the wall clock of one or more processes.
type wallClock struct {
	t    testing.TB
	file string
}

func newWallClock(t testing.TB) wallClock {
	t.Helper()
	c := wallClock{t, filepath.Join(t.TempDir(), "step")}
	require.NoError(t, os.WriteFile(c.file, make([]byte, 8), 0o600))
	return c
}

// env is the variable that makes a steppable process use this clock.
func (c wallClock) env() string { return clockFile + "=" + c.file }

// step sets the clock ahead by this much at once; zero corrects it.
func (c wallClock) step(by time.Duration) {
	c.t.Helper()
	file, err := os.OpenFile(c.file, os.O_WRONLY, 0) // written in place, because processes have mapped it
	require.NoError(c.t, err)
	_, err = file.WriteAt(native.NativeEndian.AppendUint64(nil, uint64(by)), 0)
	require.NoError(c.t, err)
	require.NoError(c.t, file.Close())
}

// wrong is the error of a process's wall clock, from the Date header of its ops
// listener.
func (p *process) wrong(t testing.TB) time.Duration {
	t.Helper()
	var date time.Time
	eventually.True(t, func() bool {
		opsURL := opsAddress.FindStringSubmatch(p.stderr.String())
		if opsURL == nil {
			return false // the process is starting
		}
		response, err := http.Get(opsURL[1] + "/livez") // of the test's own process
		if err != nil {
			return false
		}
		require.NoError(t, response.Body.Close())
		date, err = http.ParseTime(response.Header.Get("Date"))
		return err == nil
	}, 20*time.Millisecond, "no response with a Date header")
	return time.Until(date).Round(time.Minute)
}
