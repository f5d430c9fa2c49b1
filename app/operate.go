package app

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// Limits returns the configured limits of the conditions.
func (c Config) Limits() health.Limits {
	age := 2*c.AuditInterval + 2*time.Hour // one audit may fail, and audits start on the hour
	if c.AuditInterval == 0 {
		age = -1
	}
	limits := health.Limits{LagCritical: c.LagLimit, Jobs: int64(c.QueueLimit), Bytes: c.DatabaseLimit, AuditAge: age}
	limits.Collections, _ = c.deadLetterLimits() // ReadConfig has checked them
	return limits
}

// deadLetterLimits returns the limits of collections.
func (c Config) deadLetterLimits() (limits []health.DeadLetterLimit, err error) {
	for _, entry := range c.DeadLetterLimits {
		pattern, number, _ := strings.Cut(strings.TrimSpace(entry), "=")
		most, err := strconv.ParseInt(number, 10, 32)
		if err == nil {
			err = collection.CheckPattern(pattern)
		}
		switch {
		case err != nil || most < 0:
			return nil, fmt.Errorf("WEIR_DEAD_LETTER_LIMITS: %q: expected a collection and a number, such as com.example.note=0 or pub.layers.*=100",
				entry)
		case slices.ContainsFunc(limits, func(l health.DeadLetterLimit) bool { return l.Pattern == pattern }):
			return nil, fmt.Errorf("WEIR_DEAD_LETTER_LIMITS: %s occurs twice", pattern)
		}
		limits = append(limits, health.DeadLetterLimit{Pattern: pattern, Most: most})
	}
	return limits, nil
}

// webhook returns the webhook for alerts, or nil if there is none.
func (c Config) webhook() (*workers.Webhook, error) {
	if c.AlertWebhook == "" {
		return nil, nil
	}
	hook, err := workers.NewWebhook(c.AlertWebhook, c.AlertFormat)
	if err != nil {
		return nil, fmt.Errorf("WEIR_ALERT_WEBHOOK, WEIR_ALERT_FORMAT: %w", err)
	}
	return hook, nil
}

// listenOps opens the listener of health and metrics; nil if it is off. A
// configured address must be free. If the default address is in use, by another
// process on the machine, it chooses another port.
func (p App) listenOps() (net.Listener, error) {
	if p.cfg.OpsListen == "off" {
		return nil, nil
	}
	l, err := net.Listen("tcp", p.cfg.OpsListen)
	if err == nil {
		return l, nil
	}
	if os.Getenv("WEIR_OPS_LISTEN") != "" {
		return nil, fmt.Errorf("listen on WEIR_OPS_LISTEN=%s: %w; choose another address, or off", p.cfg.OpsListen, err)
	}
	host, _, _ := net.SplitHostPort(p.cfg.OpsListen)
	if l, err = net.Listen("tcp", net.JoinHostPort(host, "0")); err != nil {
		return nil, fmt.Errorf("listen for health and metrics: %w; set WEIR_OPS_LISTEN to an address, or to off", err)
	}
	p.log.Warn("ops_listener_fallback", "wanted", p.cfg.OpsListen, "url", "http://"+l.Addr().String()+"/health", "set", "WEIR_OPS_LISTEN")
	return l, nil
}

// hosts returns the host names that both listeners accept: the configured names,
// and the hosts of the listeners' addresses.
func (c Config) hosts() (web.Hosts, error) {
	names := slices.Clone(c.Hosts)
	for _, address := range []string{c.Listen, c.OpsListen} {
		host, _, _ := net.SplitHostPort(address)
		if _, err := web.ParseHosts([]string{host}); err == nil { // an invalid host fails when the listener opens
			names = append(names, host)
		}
	}
	if c.URL != "" {
		u, err := url.Parse(c.URL)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.User != nil || strings.Trim(u.Path, "/") != "" ||
			u.RawQuery != "" || u.Fragment != "" {
			return web.Hosts{}, fmt.Errorf("WEIR_URL is %q: expected an address such as https://weir.example, without a path", c.URL)
		}
		names = append(names, u.Hostname())
	}
	hosts, err := web.ParseHosts(names)
	if err != nil {
		return hosts, fmt.Errorf("WEIR_HOSTS: %w", err)
	}
	return hosts, nil
}

// proxies returns the addresses of proxies whose X-Forwarded-For is trusted.
func (c Config) proxies() (web.Proxies, error) {
	proxies, err := web.ParseProxies(c.TrustedProxies)
	if err != nil {
		return proxies, fmt.Errorf("WEIR_TRUSTED_PROXIES: %w", err)
	}
	return proxies, nil
}

// loopback reports whether only people of this machine reach an address.
func loopback(address net.Addr) bool {
	tcp, ok := address.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// ServedTool is a tool for operators that a process serves.
type ServedTool struct{ Name, URL string }

// Tools lists the tools that the process serves, inside WithOps.
func (p App) Tools() []ServedTool { return p.tools }

// openTools reports whether the tools need no token.
func (p App) openTools(at net.Addr) bool { return p.cfg.terminal && loopback(at) }

// servedTools lists the tools that the process serves.
func (p App) servedTools(at net.Addr) (all []ServedTool) {
	if p.cfg.OpsToken == "" && !p.openTools(at) {
		return nil
	}
	for _, tool := range p.parts.Tools {
		all = append(all, ServedTool{tool.Name, "http://" + at.String() + tool.Path})
	}
	return all
}

// serveOps serves health and metrics on l, of a process with these roles, until ctx ends.
func (p App) serveOps(ctx context.Context, l net.Listener, roles []string) error {
	p.metrics.MustRegister(health.NewCollector(p.pool, p.cfg.Limits(), 3*time.Second, p.parts.Health...), poolMetrics{p.pool}, buildInfo())
	p.log.Info("operating", "url", "http://"+l.Addr().String()+"/health")
	handler, err := web.OpsHandler(web.OpsConfig{
		DB: p.pool, Metrics: p.metrics, Limits: p.cfg.Limits(), Features: p.parts.Health,
		Check: func(ctx context.Context) error { return schema.CheckRunning(ctx, p.pool, tables(p.cfg.features)...) },
		Token: p.cfg.OpsToken, Tools: p.parts.Tools, OpenTools: p.openTools(l.Addr()),
		Reads: slices.Contains(roles, RoleConsumer), Owner: p.owner, Logger: p.log,
	})
	if err != nil {
		return err
	}
	var bodies []string
	for _, tool := range p.parts.Tools {
		bodies = append(bodies, tool.Path)
	}
	if err := p.serveHTTP(ctx, l, web.ServerConfig{Handler: handler, Connections: opsConnections, Bodies: bodies}); err != nil {
		return fmt.Errorf("serve health and metrics: %w", err)
	}
	return nil
}

// Version returns the version of this binary, as its module was built.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return VersionOf(info)
}

// buildInfo returns the metric with the version of this binary.
func buildInfo() prometheus.Collector {
	info := prometheus.NewGauge(prometheus.GaugeOpts{Name: "weir_build_info", Help: "1, labelled with the version.",
		ConstLabels: prometheus.Labels{"version": Version()}})
	info.Set(1)
	return info
}
