package web

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weir-social/weir/internal/ops/health"
)

// OpsConfig configures the endpoints for operators.
type OpsConfig struct {
	DB       DB
	Check    func(context.Context) error // nil if the database has this binary's schema
	Metrics  prometheus.Gatherer
	Limits   health.Limits
	Features []health.Feature
	Token    string           // required by all endpoints but health, liveness and readiness; empty: no token, and no profiles
	Reads    bool             // this process runs a consumer: it is ready only while its stream is
	Owner    string           // the name of this process in leases
	Now      func() time.Time // nil: time.Now
	Logger   *slog.Logger

	Tools     []Tool // they require a token, and are not served if none is set
	OpenTools bool   // they are served without one: only people of this machine reach the listener
}

// checkTimeout limits the queries of /health and /readyz, so that an orchestrator's
// probe gets the reason before it gives up.
const checkTimeout = 3 * time.Second

// maxProfile limits the duration of a profile or trace, which slows the process down
// and is held in memory.
const maxProfile = 30 * time.Second

// maxScrapes limits the concurrent responses of /metrics.
const maxScrapes = 8

// OpsHandler serves /health, /livez, /readyz, /metrics, /deadletters, their API and, with
// a token, /debug/pprof and the tools. It needs a listener of its own that strangers cannot reach.
func OpsHandler(o OpsConfig) (http.Handler, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	s, err := newServer(Config{DB: o.DB, Now: o.Now, Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	s.home, s.front.ToIt, s.actions = "/deadletters", say("to_letters"), "/api/v1/deadletters/"
	mux := http.NewServeMux()
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("ok\n")) }) // the client has gone
	mux.HandleFunc("/readyz", s.Buffered(o.ready))
	mux.HandleFunc("/health", s.Buffered(o.health))
	mux.Handle("/metrics", o.requireToken(promhttp.HandlerFor(o.Metrics, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(o.Logger.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: maxScrapes,
	})))
	mux.Handle("/deadletters", o.requireToken(s.Buffered(s.serveDeadLetters)))
	mux.Handle("/deadletters/{id}", o.requireToken(s.Buffered(s.serveDeadLetter)))
	s.handleDeadLetterAPI(mux, o.requireToken)
	mux.HandleFunc("/static/{build}/{name}", s.serveAsset)
	mux.Handle("/debug/pprof/", o.profiles())
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.WriteError(w, r, http.StatusNotFound, say("error_ops_not_found"))
	})
	all := http.NewServeMux()
	all.Handle("/", s.secure(mux))
	return all, o.handleTools(s, all)
}

// profiles serves pprof. It requires a token, because profiles show memory contents
// and the command line, and slow the process down.
func (o OpsConfig) profiles() http.Handler {
	if o.Token == "" {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, say("error_profiles"), http.StatusNotFound)
		})
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return o.requireToken(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if text := r.FormValue("seconds"); text != "" {
			seconds, err := strconv.ParseFloat(text, 64)
			if err != nil || !(seconds >= 0 && seconds <= maxProfile.Seconds()) { // refuses NaN too
				http.Error(w, WrongValue("seconds", text, say("expected_seconds", int(maxProfile.Seconds()))).Error(), http.StatusBadRequest)
				return
			}
		}
		mux.ServeHTTP(w, r)
	}))
}

// requireToken checks the token if one is set: as a bearer token, or as the password
// of any user name, for browsers.
func (o OpsConfig) requireToken(next http.Handler) http.Handler {
	if o.Token == "" {
		return next
	}
	want := sha256.Sum256([]byte(o.Token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok {
			_, token, _ = r.BasicAuth()
		}
		got := sha256.Sum256([]byte(token))
		if subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Add("WWW-Authenticate", `Bearer realm="weir"`)
			w.Header().Add("WWW-Authenticate", `Basic realm="weir: any name, and WEIR_OPS_TOKEN as the password", charset="UTF-8"`)
			http.Error(w, say("error_token"), http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// health returns the health report, with status 200, or 503 if Weir is unhealthy.
func (o OpsConfig) health(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
	defer cancel()
	report, err := health.Read(ctx, o.DB, time.Now(), o.Limits, o.Features...)
	if err != nil {
		report = health.Unreachable(err, o.Features...)
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
	encoder.Encode(report) // the client has gone
}

// ready reports whether this process can do its work, with the reasons if it cannot.
func (o OpsConfig) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
	defer cancel()
	var reasons []string
	if err := o.Check(ctx); err != nil {
		reasons = append(reasons, err.Error())
	} else if o.Reads {
		report, err := health.Read(ctx, o.DB, time.Now(), o.Limits, o.Features...)
		if err != nil {
			reasons = append(reasons, err.Error())
		} else {
			reasons = report.NotReady(o.Limits)
		}
	}
	if len(reasons) == 0 {
		w.Write([]byte("ok\n")) // the client has gone
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusServiceUnavailable)
	for _, reason := range reasons {
		w.Write([]byte(reason + "\n")) // the client has gone
	}
}
