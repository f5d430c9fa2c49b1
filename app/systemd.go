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

	"github.com/weir-social/weir/ops/health"
	"github.com/weir-social/weir/web"
)

// life knows of each part of this process how to ask whether it is at work. The
// nil life is asked nothing.
type life struct {
	mu    sync.Mutex
	parts map[string]func(ctx context.Context, within time.Duration) error
}

// tell says how a part that has started is asked. It answers nil when the part
// was at work within a duration, and else says what is wrong.
func (l *life) tell(part string, ask func(ctx context.Context, within time.Duration) error) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.parts == nil {
		l.parts = map[string]func(context.Context, time.Duration) error{}
	}
	l.parts[part] = ask
}

// ask answers nil when every one of the parts has started and is at work.
func (l *life) ask(ctx context.Context, parts []string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for _, part := range parts {
		l.mu.Lock()
		ask, started := l.parts[part]
		l.mu.Unlock()
		if !started {
			return fmt.Errorf("the %s: not started yet", part)
		}
		if err := ask(ctx, within); err != nil {
			return fmt.Errorf("the %s: %w", part, err)
		}
	}
	return nil
}

// beaten asks by the time of a part's last beat.
func beaten(last func() time.Time) func(context.Context, time.Duration) error {
	return func(_ context.Context, within time.Duration) error {
		if quiet := time.Since(last()); quiet > within {
			return fmt.Errorf("no beat for %s", quiet.Round(time.Millisecond))
		}
		return nil
	}
}

// connectable asks whether a connection is to be had. That the database is away
// is not our death; that all connections are taken for so long is.
func connectable(pool *pgxpool.Pool) func(context.Context, time.Duration) error {
	return func(ctx context.Context, _ time.Duration) error {
		conn, err := pool.Acquire(ctx)
		if err == nil {
			conn.Release()
			return nil
		}
		if stat := pool.Stat(); errors.Is(err, context.DeadlineExceeded) && stat.AcquiredConns() == stat.MaxConns() {
			return errors.New("every connection to the database is taken")
		}
		return nil
	}
}

// answering asks the page, as a visitor would.
func answering(l net.Listener) func(context.Context, time.Duration) error {
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

// readyWithin is how lately a part must have been at work to be ready.
const readyWithin = 10 * time.Second

// WithSystemd is f, but where systemd started the process it tells it when all the
// parts are ready, and for as long as they are at work: for a unit with
// Type=notify and WatchdogSec= (sd_notify(3)).
func WithSystemd(f func(context.Context, App) error, names ...string) func(context.Context, App) error {
	return func(ctx context.Context, p App) error {
		if os.Getenv("NOTIFY_SOCKET") == "" {
			return f(ctx, p)
		}
		p.life = &life{}
		over, end := context.WithCancel(context.WithoutCancel(ctx)) // it watches a slow stop too
		var told sync.WaitGroup
		told.Go(func() { p.watch(over, names) })
		running, ended := context.WithCancel(ctx)
		told.Go(func() { p.tellStatus(running, names) })
		stop := context.AfterFunc(ctx, func() {
			p.notify(daemon.SdNotifyStopping + "\nSTATUS=stopping: what was read is committed, and running jobs end")
		})
		defer told.Wait()
		defer ended()
		defer end()
		defer stop()
		return f(ctx, p)
	}
}

// watch tells systemd that the parts are ready, and then that they live, until
// ctx ends.
func (p App) watch(ctx context.Context, names []string) {
	for p.life.ask(ctx, names, readyWithin) != nil {
		if !pause(ctx, 50*time.Millisecond) {
			return
		}
	}
	p.notify(daemon.SdNotifyReady)
	p.log.Info("ready", "parts", names)
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		p.log.Warn("systemd_watchdog_unknown", "error", err)
	}
	if every == 0 {
		return
	}
	for pause(ctx, every/2) {
		if err := p.life.ask(ctx, names, every); err != nil {
			p.log.Error("not_at_work", "error", err, "effect", "systemd restarts the process")
			continue
		}
		p.notify(daemon.SdNotifyWatchdog)
	}
}

// statusEvery is how often it is looked whether the status has changed.
const (
	statusEvery    = 5 * time.Second
	statusPatience = 3 * time.Second // how long the database may take to say it
)

// tellStatus tells systemd in a line how Weir is doing, whenever that changes,
// until ctx ends: it is what systemctl status shows.
func (p App) tellStatus(ctx context.Context, names []string) {
	told := ""
	for pause(ctx, statusEvery) {
		if now := p.status(ctx, names); now != told && ctx.Err() == nil {
			p.notify("STATUS=" + now)
			told = now
		}
	}
}

// status is the verdict of weir status as these parts see it, and what is not
// well, in one line that systemd takes.
func (p App) status(ctx context.Context, names []string) string {
	reading, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	report, err := health.Read(reading, p.pool, time.Now(), p.cfg.Limits())
	if err != nil {
		report = health.Unreachable(errors.New(Sentence(err)))
	}
	if slices.Contains(names, PartConsumer) {
		report.SeenBy(p.owner)
	}
	line := report.Verdict()
	for _, c := range report.Conditions {
		line += "; " + c.Message
	}
	if err := p.life.ask(ctx, names, readyWithin); err != nil {
		line += "; " + err.Error()
	}
	shown := []rune(web.Plain(line))
	return string(shown[:min(len(shown), 500)])
}

// notify sends one state. Whoever does not listen any more has stopped us.
func (p App) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		p.log.Warn("systemd_not_told", "state", state, "error", err)
	}
}

// pause waits, and answers false when ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// The parts that a command can run.
const (
	PartConsumer = "consumer"
	PartWorkers  = "workers"
	PartPage     = "page"
)
