package web

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weir-social/weir/health"
	"github.com/weir-social/weir/schema"
)

// Operations is what the endpoints for operators need.
type Operations struct {
	DB      schema.DB
	Check   func(context.Context) error // whether the database has this binary's schema
	Metrics prometheus.Gatherer
	Limits  health.Limits
	Token   string // asked for by /metrics and /debug/pprof; empty: anybody may look
	Reads   bool   // this process runs a consumer: it is ready while its stream is
	Owner   string // how this process is called in leases
	Logger  *slog.Logger
}

// askWithin bounds every question to the database: an orchestrator's probe
// gives up sooner or later, and must hear why before it does.
const askWithin = 3 * time.Second

// Operate serves /health, /livez, /readyz, /metrics and /debug/pprof. It belongs
// on a listener of its own: strangers have no business there.
func Operate(o Operations) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("ok\n")) }) //nolint:errcheck // the client has gone
	mux.HandleFunc("GET /readyz", o.ready)
	mux.HandleFunc("GET /health", o.health)
	mux.Handle("GET /metrics", o.guarded(promhttp.HandlerFor(o.Metrics, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(o.Logger.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError,
	})))
	profiles := http.NewServeMux()
	profiles.HandleFunc("/debug/pprof/", pprof.Index)
	profiles.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	profiles.HandleFunc("/debug/pprof/profile", pprof.Profile)
	profiles.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	profiles.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.Handle("/debug/pprof/", o.guarded(profiles))
	return mux
}

// guarded asks for the token, where there is one.
func (o Operations) guarded(next http.Handler) http.Handler {
	if o.Token == "" {
		return next
	}
	want := sha256.Sum256([]byte("Bearer " + o.Token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got := sha256.Sum256([]byte(r.Header.Get("Authorization")))
		if subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Set("WWW-Authenticate", `Bearer realm="weir"`)
			http.Error(w, "send the header Authorization: Bearer with the value of WEIR_OPS_TOKEN", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// health answers 200 while Weir does its work, 503 while it does not, and the
// same report in both cases.
func (o Operations) health(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), askWithin)
	defer cancel()
	report, err := health.Read(ctx, o.DB, time.Now(), o.Limits)
	if err != nil {
		report = health.Unreachable(err)
	} else if o.Reads {
		report.SeenBy(o.Owner)
	}
	code := http.StatusOK
	if report.Status == health.Unhealthy {
		code = http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.Encode(report) //nolint:errcheck // the client has gone
}

// ready says whether this process can do what it is there for, and if not, why.
func (o Operations) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), askWithin)
	defer cancel()
	var because []string
	if err := o.Check(ctx); err != nil {
		because = append(because, err.Error())
	} else if o.Reads {
		report, err := health.Read(ctx, o.DB, time.Now(), o.Limits)
		if err != nil {
			because = append(because, err.Error())
		} else {
			because = report.NotReady(o.Limits)
		}
	}
	if len(because) == 0 {
		w.Write([]byte("ok\n")) //nolint:errcheck // the client has gone
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusServiceUnavailable)
	for _, why := range because {
		w.Write([]byte(why + "\n")) //nolint:errcheck // the client has gone
	}
}
