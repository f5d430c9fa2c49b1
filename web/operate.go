package web

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weir-social/weir/ops/health"
	"github.com/weir-social/weir/schema"
)

// Operations is what the endpoints for operators need.
type Operations struct {
	DB      schema.DB
	Check   func(context.Context) error // whether the database has this binary's schema
	Metrics prometheus.Gatherer
	Limits  health.Limits
	Token   string           // asked for by all but health and readiness; empty: anybody may look, and there are no profiles
	Reads   bool             // this process runs a consumer: it is ready while its stream is
	Owner   string           // how this process is called in leases
	Now     func() time.Time // nil: time.Now
	Title   string           // the name at the top of the pages; "": Weir
	Logger  *slog.Logger
}

// askWithin bounds every question to the database: an orchestrator's probe
// gives up sooner or later, and must hear why before it does.
const askWithin = 3 * time.Second

// longestProfile is how long a profile or trace may take: it costs the process
// something, and is held in memory.
const longestProfile = 30 * time.Second

// scrapesAtOnce is how many answers of /metrics are made at once.
const scrapesAtOnce = 8

// Operate serves /health, /livez, /readyz, /metrics, /deadletters and, with a
// token, /debug/pprof. It belongs on a listener of its own: strangers have no
// business there.
func Operate(o Operations) (http.Handler, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	s, err := newServer(Config{DB: o.DB, Now: o.Now, Title: o.Title, Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	s.home, s.homeName = "/deadletters", "To the dead letters"
	mux := http.NewServeMux()
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("ok\n")) }) //nolint:errcheck // the client has gone
	mux.HandleFunc("/readyz", s.rendered(o.ready))
	mux.HandleFunc("/health", s.rendered(o.health))
	mux.Handle("/metrics", o.guarded(promhttp.HandlerFor(o.Metrics, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(o.Logger.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: scrapesAtOnce,
	})))
	mux.Handle("/deadletters", o.guarded(s.rendered(s.serveLetters)))
	mux.Handle("/deadletters/{id}", o.guarded(s.rendered(s.serveLetter)))
	mux.HandleFunc("/static/{build}/{name}", s.serveAsset)
	mux.Handle("/debug/pprof/", o.profiles())
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.refuse(w, r, http.StatusNotFound, "There is nothing at this address: operators find /health, /livez, /readyz, /metrics, /deadletters and /debug/pprof/ here.")
	})
	return s.guard(mux), nil
}

// profiles shows what is in memory, the command line included, and takes time:
// only for those who know the token.
func (o Operations) profiles() http.Handler {
	if o.Token == "" {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "There are no profiles without a token: set the variable WEIR_OPS_TOKEN and restart Weir.", http.StatusNotFound)
		})
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return o.guarded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if text := r.FormValue("seconds"); text != "" {
			seconds, err := strconv.ParseFloat(text, 64)
			if err != nil || !(seconds >= 0 && seconds <= longestProfile.Seconds()) { // not a number is not less either
				http.Error(w, fmt.Sprintf("seconds is %q: send a number from 0 to %.0f", shorten(text, 40), longestProfile.Seconds()), http.StatusBadRequest)
				return
			}
		}
		mux.ServeHTTP(w, r)
	}))
}

// guarded asks for the token, where there is one: as a bearer's, or as the
// password of any name, which is what a browser asks a person for.
func (o Operations) guarded(next http.Handler) http.Handler {
	if o.Token == "" {
		return next
	}
	want := sha256.Sum256([]byte(o.Token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok {
			_, given, _ = r.BasicAuth()
		}
		got := sha256.Sum256([]byte(given))
		if subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Add("WWW-Authenticate", `Bearer realm="weir"`)
			w.Header().Add("WWW-Authenticate", `Basic realm="weir: any name, and WEIR_OPS_TOKEN as the password", charset="UTF-8"`)
			http.Error(w, "send the header Authorization: Bearer with the value of WEIR_OPS_TOKEN; in a browser, any name and that value as the password", http.StatusUnauthorized)
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
