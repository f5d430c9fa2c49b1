package clickhouse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
)

// Error classes. Every error of an Index is of one of them, or the context's.
var (
	// ErrAway: the server cannot be reached or is not able to do it now, and nothing was
	// stored.
	ErrAway = errors.New("ClickHouse is unreachable")
	// ErrRefused: the server refuses the statement, and would do so again.
	ErrRefused = errors.New("ClickHouse refuses")
	// ErrAmbiguous: nobody knows whether the rows are stored. Only a count after a pause
	// of Settle can tell.
	ErrAmbiguous = errors.New("it is not known whether ClickHouse stored the rows")
)

// Index is a ClickHouse server with the table of events. It is safe for concurrent use.
// It never repeats a request.
type Index struct {
	base   url.URL
	user   *url.Userinfo
	client *http.Client
	settle time.Duration // Settle, or less in tests

	blockRows int // of a block: blockRows, or less in tests

	mu       sync.Mutex
	settings map[string]bool // of the server, among wanted; nil: not asked yet
}

// blockRows is how many rows are one block at most. A server divides a larger one (18.16 at
// 1,048,576 rows, 26.7 at 1,048,449), and stores its parts one by one.
const blockRows = 1_000_000

const (
	statementTimeout = time.Minute     // of a count or a query
	insertTimeout    = 2 * time.Minute // a block of a slow server
	maxAnswer        = 64 << 20        // bytes of an answer: positions of a segment
)

// wanted are the settings that are sent where the server has them: with async_insert the
// server would join blocks and answer before they are stored.
func wanted() map[string]string {
	return map[string]string{"async_insert": "0", "insert_deduplicate": "1", "deduplicate_blocks_in_dependent_materialized_views": "1"}
}

// tokenSetting names a block, so that newer servers store it once.
const tokenSetting = "insert_deduplication_token"

// everywhere is a setting of every server. Without it in the answer, something else
// answered, such as a proxy's page.
const everywhere = "max_block_size"

// New returns the index at a URL such as http://user:password@host:8123/database. It
// connects to nothing yet. transport may be nil.
func New(address string, transport http.RoundTripper) (*Index, error) {
	// The error does not quote the address: wherever its parts are, one may be a password.
	u, err := url.Parse(address)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" || strings.Contains(strings.Trim(u.Path, "/"), "/") {
		return nil, errors.New("this is not a URL of ClickHouse: expected http://user:password@host:8123/database; write / # ? % @ in a password as %2F %23 %3F %25 %40")
	}
	database := strings.Trim(u.Path, "/")
	x := &Index{base: url.URL{Scheme: u.Scheme, Host: u.Host, Path: "/"}, user: u.User, settle: Settle, blockRows: blockRows}
	if database != "" {
		x.base.RawQuery = url.Values{"database": {database}}.Encode()
	}
	if transport == nil {
		transport = &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true} // net/http repeats a request on a connection that was idle
	}
	x.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return x, nil
}

// String returns where the server is, without secrets.
func (x *Index) String() string { return x.base.Scheme + "://" + x.base.Host }

// query runs a statement that changes nothing, or that may be repeated.
func (x *Index) query(ctx context.Context, sql string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	answer, sent, err := x.send(ctx, nil, []byte(sql))
	if err != nil && !sent {
		return nil, err
	}
	if err != nil && !errors.Is(err, ErrRefused) {
		return nil, fmt.Errorf("%w: %w", ErrAway, err)
	}
	return answer, err
}

// known returns which of the settings that Weir wants the server has: an old server
// refuses others. It asks again if fresh is set: the server may be another one by now.
func (x *Index) known(ctx context.Context, fresh bool) (map[string]bool, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.settings != nil && !fresh {
		return x.settings, nil
	}
	names := append(slices.Sorted(maps.Keys(wanted())), tokenSetting, everywhere)
	answer, err := x.query(ctx, `SELECT name FROM system.settings WHERE name IN ('`+strings.Join(names, `', '`)+`') FORMAT TabSeparated`)
	if err != nil {
		return nil, err
	}
	has := map[string]bool{}
	for name := range strings.FieldsSeq(string(answer)) {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("%w: the server at %s is not ClickHouse", ErrAway, x)
		}
		has[name] = true
	}
	if !has[everywhere] {
		return nil, fmt.Errorf("%w: the server at %s is not ClickHouse", ErrAway, x)
	}
	x.settings = has
	return has, nil
}

// insert sends one block. token names it.
func (x *Index) insert(ctx context.Context, token string, block []byte) error {
	has, err := x.known(ctx, false)
	if err != nil {
		return err
	}
	settings := url.Values{"query": {insertStatement}}
	for name, value := range wanted() {
		if has[name] {
			settings.Set(name, value)
		}
	}
	if has[tokenSetting] {
		settings.Set(tokenSetting, token)
	}
	ctx, cancel := context.WithTimeout(ctx, insertTimeout)
	defer cancel()
	_, sent, err := x.send(ctx, settings, block)
	if err != nil && sent && !errors.Is(err, ErrRefused) {
		return fmt.Errorf("%w: %w", ErrAmbiguous, err)
	}
	return err
}

// send posts a body in one piece. sent: the server may have read it.
func (x *Index) send(ctx context.Context, settings url.Values, body []byte) (answer []byte, sent bool, err error) {
	at := x.base
	values := at.Query()
	maps.Copy(values, settings)
	at.RawQuery = values.Encode()
	trace := &dialled{}
	r, err := http.NewRequestWithContext(trace.context(ctx), http.MethodPost, at.String(), bytes.NewReader(body))
	if err != nil {
		return nil, false, fmt.Errorf("ask ClickHouse: %w", err)
	}
	r.GetBody = nil // nothing can send it twice
	if password, ok := x.user.Password(); x.user != nil {
		r.Header.Set("X-ClickHouse-User", x.user.Username())
		if ok {
			r.Header.Set("X-ClickHouse-Key", password)
		}
	}
	response, err := x.client.Do(r)
	if err != nil {
		if !trace.connected.Load() {
			return nil, false, fmt.Errorf("%w: %w", ErrAway, withoutURL(err))
		}
		return nil, true, withoutURL(err)
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	answer, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, true, fmt.Errorf("read the answer: %w", err)
	case len(answer) > maxAnswer:
		return nil, true, fmt.Errorf("the answer has more than %d bytes", maxAnswer)
	case response.StatusCode != http.StatusOK:
		return nil, true, statusError(response.StatusCode, x.withoutPassword(answer))
	}
	return answer, true, nil
}

// withoutURL removes the URL from an error of net/http.
func withoutURL(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}

// withoutPassword removes the password from an answer that repeats it, as an error page of
// a proxy may.
func (x *Index) withoutPassword(answer []byte) []byte {
	if password, _ := x.user.Password(); x.user != nil && password != "" {
		return bytes.ReplaceAll(answer, []byte(password), []byte("[password]"))
	}
	return answer
}

// printable returns the beginning of an answer for an error, which goes into logs, onto
// terminals and into the row of a job: Postgres stores no zero byte.
func printable(answer []byte) string {
	const quoted = 300
	text := strings.ToValidUTF8(string(answer[:min(len(answer), quoted)]), "")
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text))
}

var codePattern = regexp.MustCompile(`Code: (\d+)`)

// transient are the codes of ClickHouse's exceptions that say nothing about the
// statement: time, memory, connections, parts, replicas, shutting down.
func transient(code int) bool {
	switch code {
	case 159, 160, 164, 198, 201, 202, 203, 209, 210, 225, 236, 241, 242, 243, 252, 279, 285, 286, 319, 394, 425, 439, 999:
		return true
	}
	return false
}

// statusError returns the error of an answer that is not 200.
func statusError(status int, answer []byte) error {
	err := fmt.Errorf("status %d: %s", status, printable(answer))
	m := codePattern.FindSubmatch(answer)
	if m == nil {
		return err // a proxy
	}
	if code, bad := strconv.Atoi(string(m[1])); bad == nil && !transient(code) {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return err
}
