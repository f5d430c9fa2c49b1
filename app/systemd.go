package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/internal/retry"
	"github.com/weir-social/weir/internal/web"
)

// liveness holds the health checks of the roles that this process runs. A nil
// liveness ignores them.
type liveness struct {
	mu     sync.Mutex
	checks map[string]func(ctx context.Context, within time.Duration) error
}

// add adds the check of a role that has started. The check returns nil if the role
// was active within a duration, otherwise the problem.
func (l *liveness) add(role string, check func(ctx context.Context, within time.Duration) error) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.checks == nil {
		l.checks = map[string]func(context.Context, time.Duration) error{}
	}
	l.checks[role] = check
}

// check returns nil if every role has started and is active.
func (l *liveness) check(ctx context.Context, roles []string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for _, role := range roles {
		l.mu.Lock()
		check, started := l.checks[role]
		l.mu.Unlock()
		if !started {
			return fmt.Errorf("the %s: not started yet", role)
		}
		if err := check(ctx, within); err != nil {
			return fmt.Errorf("the %s: %w", role, err)
		}
	}
	return nil
}

// checkHeartbeat returns a check of the time of a role's last heartbeat.
func checkHeartbeat(last func() time.Time) func(context.Context, time.Duration) error {
	return func(_ context.Context, within time.Duration) error {
		if quiet := time.Since(last()); quiet > within {
			return fmt.Errorf("no heartbeat for %s", quiet.Round(time.Millisecond))
		}
		return nil
	}
}

// checkPool returns a check that a connection is available. An unreachable database
// is not a failure of this process, but a pool that stays exhausted is.
func checkPool(pool *pgxpool.Pool) func(context.Context, time.Duration) error {
	return func(ctx context.Context, _ time.Duration) error {
		conn, err := pool.Acquire(ctx)
		if err == nil {
			conn.Release()
			return nil
		}
		if stat := pool.Stat(); errors.Is(err, context.DeadlineExceeded) && stat.AcquiredConns() == stat.MaxConns() {
			return errors.New("every connection to the database is in use")
		}
		return nil
	}
}

// checkPage returns a check that requests the page, as a visitor would.
func checkPage(l net.Listener) func(context.Context, time.Duration) error {
	return func(ctx context.Context, _ time.Duration) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodHead, "http://"+l.Addr().String()+"/static/", nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		return response.Body.Close()
	}
}

// readyWithin is how recently a role must have been active to be ready.
const readyWithin = 10 * time.Second

// WithSystemd returns f with systemd notifications, for a unit with Type=notify and
// WatchdogSec= (sd_notify(3)): ready when all roles are ready, then watchdog pings
// while all are active. Without systemd it only runs f.
func WithSystemd(f func(context.Context, App) error, names ...string) func(context.Context, App) error {
	return func(ctx context.Context, p App) error {
		if os.Getenv("NOTIFY_SOCKET") == "" {
			return f(ctx, p)
		}
		p.liveness = &liveness{}
		over, end := context.WithCancel(context.WithoutCancel(ctx)) // the watchdog also covers a slow stop
		var reporting sync.WaitGroup
		reporting.Go(func() { p.watch(over, names) })
		running, ended := context.WithCancel(ctx)
		reporting.Go(func() { p.reportStatus(running, names) })
		reporting.Go(func() {
			if <-running.Done(); ctx.Err() != nil {
				p.notify(daemon.SdNotifyStopping + "\nSTATUS=stopping: committing read events and finishing running jobs")
			}
		})
		defer reporting.Wait()
		defer ended()
		defer end()
		return f(ctx, p)
	}
}

// watch notifies systemd that the roles are ready, and then that they are alive,
// until ctx ends.
func (p App) watch(ctx context.Context, names []string) {
	for p.liveness.check(ctx, names, readyWithin) != nil {
		if retry.Sleep(ctx, 50*time.Millisecond) != nil {
			return
		}
	}
	p.notify(daemon.SdNotifyReady)
	p.log.Info("ready", "roles", names)
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		p.log.Warn("systemd_watchdog_unknown", "error", err)
	}
	if every == 0 {
		return
	}
	for retry.Sleep(ctx, every/2) == nil {
		if err := p.liveness.check(ctx, names, every); err != nil {
			p.log.Error("liveness_check_failed", "error", err, "effect", "systemd restarts the process")
			continue
		}
		p.notify(daemon.SdNotifyWatchdog)
	}
}

// How often the status is checked for changes.
const (
	statusInterval = 5 * time.Second
	statusTimeout  = 3 * time.Second // how long the database may take
)

// reportStatus sends the state of Weir to systemd whenever it changes, until ctx
// ends. systemctl status shows it.
func (p App) reportStatus(ctx context.Context, names []string) {
	last := ""
	for retry.Sleep(ctx, statusInterval) == nil {
		if now := p.status(ctx, names); now != last && ctx.Err() == nil {
			p.notify("STATUS=" + now)
			last = now
		}
	}
}

// status returns the first line of weir status for these roles and the current
// problems, in one line.
func (p App) status(ctx context.Context, names []string) string {
	reading, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	report, err := p.Health(reading, time.Now())
	if err != nil {
		report = health.Unreachable(errors.New(Sentence(err)), p.parts.Health...)
	}
	if slices.Contains(names, RoleConsumer) {
		report.SeenBy(p.owner)
	}
	line := report.Summary()
	for _, c := range report.Conditions {
		line += "; " + c.Message
	}
	if err := p.liveness.check(ctx, names, readyWithin); err != nil {
		line += "; " + err.Error()
	}
	shown := []rune(web.Plain(line))
	return string(shown[:min(len(shown), 500)])
}

// notify sends a state to systemd.
func (p App) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		p.log.Warn("systemd_notify_failed", "state", state, "error", err)
	}
}

// The roles that a command can run.
const (
	RoleConsumer = "consumer"
	RoleWorkers  = "workers"
	RolePage     = "page"
)

// Roles returns all roles.
func Roles() []string { return []string{RoleConsumer, RoleWorkers, RolePage} }
