package card

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// robots.txt according to RFC 9309. The available libraries have not been maintained for
// years, and compile untrusted patterns to regular expressions.

const (
	maxRobots   = 500 << 10 // bytes that are read, as the RFC requires
	maxRules    = 64 << 10  // bytes of the rules for us: a file with more forbids everything
	robotsHosts = 512       // maximum number of remembered hosts
	robotsFor   = 12 * time.Hour
)

// rule allows or disallows the paths that match a pattern.
type rule struct {
	allow   bool
	pattern string
}

// rules are the rules of a robots.txt that apply to us.
type rules struct {
	all     []rule
	nothing bool // nothing is allowed
}

// robotsCache remembers the rules of hosts.
type robotsCache struct {
	mu    sync.Mutex
	hosts map[string]robotsEntry
}

type robotsEntry struct {
	rules rules
	until time.Time
}

func (c *robotsCache) find(host string, now time.Time) (rules, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.hosts[host]
	return e.rules, ok && now.Before(e.until) && e.until.Sub(now) <= robotsFor // the clock may have been set back
}

func (c *robotsCache) keep(host string, r rules, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hosts == nil {
		c.hosts = map[string]robotsEntry{}
	}
	if _, ok := c.hosts[host]; !ok && len(c.hosts) >= robotsHosts {
		for other := range c.hosts { // any
			delete(c.hosts, other)
			break
		}
	}
	c.hosts[host] = robotsEntry{r, now.Add(robotsFor)}
}

// mayFetch reports whether the robots.txt of a host allows an address. It returns an error
// if the file cannot be read now.
func (c *Client) mayFetch(ctx context.Context, at *url.URL) (bool, error) {
	host := at.Scheme + "://" + strings.ToLower(at.Host)
	r, ok := c.robots.find(host, time.Now())
	if !ok {
		var err error
		if r, err = c.readRobots(ctx, &url.URL{Scheme: at.Scheme, Host: at.Host, Path: "/robots.txt"}); err != nil {
			return false, err
		}
		c.robots.keep(host, r, time.Now())
	}
	path := at.EscapedPath()
	if path == "" {
		path = "/"
	}
	if at.RawQuery != "" {
		path += "?" + at.RawQuery
	}
	return r.allow(path), nil
}

// readRobots reads a robots.txt. A file that does not exist allows everything.
func (c *Client) readRobots(ctx context.Context, at *url.URL) (rules, error) {
	resp, _, err := c.follow(ctx, at, nil)
	if _, dead := errors.AsType[*Dead](err); dead { // it redirects for ever, or to an address that is never requested
		return rules{}, nil
	}
	if err != nil {
		return rules{}, fmt.Errorf("read robots.txt: %w", err)
	}
	defer resp.Body.Close() // it was read
	if resp.StatusCode != http.StatusOK {
		return rules{}, nil
	}
	body, err := bounded(resp, maxRobots)
	if _, dead := errors.AsType[*Dead](err); dead {
		return rules{}, nil
	}
	if err != nil {
		return rules{}, fmt.Errorf("read robots.txt of %s: %w", at.Hostname(), err)
	}
	text, err := io.ReadAll(body)
	if _, dead := errors.AsType[*Dead](broken(err)); err != nil && !dead { // if the file breaks off, the part that was read counts
		return rules{}, fmt.Errorf("read robots.txt of %s: %w", at.Hostname(), err)
	}
	name, _, _ := strings.Cut(c.cfg.UserAgent, " ")
	return parseRobots(string(text), name), nil
}

// parseRobots returns the rules for a crawler: those of the groups that name it, or else
// those for all crawlers.
func parseRobots(text, name string) rules {
	var ours, everybody []rule
	named, isOurs, isEverybody, ruled := false, false, false, true
	size := 0
	text = strings.TrimPrefix(text, "\uFEFF")
	for line := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == '\n' || r == '\r' }) {
		line, _, _ = strings.Cut(line, "#")
		key, value, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		value = strings.TrimSpace(value)
		switch key = strings.ToLower(strings.TrimSpace(key)); key {
		case "user-agent":
			if ruled { // the first line of a group
				isOurs, isEverybody, ruled = false, false, false
			}
			product, _, _ := strings.Cut(value, "/")
			isOurs = isOurs || strings.EqualFold(product, name)
			isEverybody = isEverybody || value == "*"
			named = named || isOurs
		case "allow", "disallow":
			ruled = true
			if value == "" || !isOurs && !isEverybody {
				continue
			}
			if size += len(value); size > maxRules {
				return rules{nothing: true}
			}
			r := rule{key == "allow", normalPath(value)}
			if isOurs {
				ours = append(ours, r)
			}
			if isEverybody {
				everybody = append(everybody, r)
			}
		}
	}
	if named {
		return rules{all: ours}
	}
	return rules{all: everybody}
}

// allow reports whether a path is allowed. The longest matching pattern decides; for equal
// lengths, the one that allows. robots.txt itself is always allowed.
func (r rules) allow(path string) bool {
	if r.nothing {
		return false
	}
	path = normalPath(path)
	longest, allow := -1, true
	for _, rule := range r.all {
		if n := len(rule.pattern); (n > longest || n == longest && rule.allow) && matches(rule.pattern, path) {
			longest, allow = n, rule.allow
		}
	}
	return allow
}

// matches reports whether a pattern matches the beginning of a path. * matches any text,
// and $ at the end matches the end of the path.
func matches(pattern, path string) bool {
	pattern, whole := strings.CutSuffix(pattern, "$")
	parts := strings.Split(pattern, "*")
	rest, ok := strings.CutPrefix(path, parts[0])
	if !ok {
		return false
	}
	if len(parts) == 1 {
		return !whole || rest == ""
	}
	for i, part := range parts[1:] {
		if whole && i == len(parts)-2 {
			return strings.HasSuffix(rest, part)
		}
		at := strings.Index(rest, part)
		if at < 0 {
			return false
		}
		rest = rest[at+len(part):]
	}
	return true
}

// normalPath returns a path in the form in which paths are compared: only characters that
// must be encoded are.
func normalPath(path string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		c := path[i]
		if c == '%' && i+2 < len(path) {
			high, low := strings.IndexByte(hex, upper(path[i+1])), strings.IndexByte(hex, upper(path[i+2]))
			if high >= 0 && low >= 0 {
				c = byte(high<<4 | low)
				i += 2
				if c == '-' || c == '.' || c == '_' || c == '~' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' {
					b.WriteByte(c)
				} else {
					b.WriteString(string([]byte{'%', hex[c>>4], hex[c&15]}))
				}
				continue
			}
		}
		if c >= 0x80 {
			b.WriteString(string([]byte{'%', hex[c>>4], hex[c&15]}))
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}

func upper(c byte) byte {
	if 'a' <= c && c <= 'z' {
		return c - 'a' + 'A'
	}
	return c
}
