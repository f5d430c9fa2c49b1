package clickhouse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
)

// Error classes. Every error of an Index wraps one of them, or is the context's.
var (
	// ErrAway: the server cannot be reached, or cannot run the statement now. Nothing was
	// stored.
	ErrAway = errors.New("ClickHouse is unreachable")
	// ErrRefused: the server refuses the statement, and would refuse it again.
	ErrRefused = errors.New("ClickHouse refuses")
	// ErrAmbiguous: it is unknown whether the rows are stored. Only a count after a pause
	// of Settle can tell.
	ErrAmbiguous = errors.New("it is not known whether ClickHouse stored the rows")
)

// Index is a ClickHouse server with the table of events. It is safe for concurrent use. It
// never repeats a request.
type Index struct {
	base   url.URL
	user   *url.Userinfo
	client *http.Client
	settle time.Duration // Settle, or less in tests

	blockRows int // rows per block: blockRows, or less in tests

	settings atomic.Pointer[map[string]bool] // the settings in wanted that the server has; nil: not read yet
}

// blockRows is the maximum number of rows per block. A server divides a larger block (18.16
// at 1,048,576 rows, 26.7 at 1,048,449), and stores its parts one by one.
const blockRows = 1_000_000

const (
	statementTimeout = time.Minute     // for a count or a query
	insertTimeout    = 2 * time.Minute // for a block on a slow server
	maxAnswer        = 64 << 20        // bytes of a response: positions of a segment
)

// wanted returns the settings that are sent if the server has them. With async_insert the
// server would join blocks and respond before they are stored.
func wanted() map[string]string {
	return map[string]string{"async_insert": "0", "insert_deduplicate": "1", "deduplicate_blocks_in_dependent_materialized_views": "1"}
}

// tokenSetting names a block, so that newer servers store it only once.
const tokenSetting = "insert_deduplication_token"

// everywhere is a setting that every server has. If a response lacks it, the response is
// from something else, such as a proxy.
const everywhere = "max_block_size"

// New returns the index at a URL such as http://user:password@host:8123/database. It does
// not connect. transport may be nil.
func New(address string, transport http.RoundTripper) (*Index, error) {
	// The error does not quote the address: any misplaced part of it may be a password.
	u, err := url.Parse(address)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" ||
		strings.Contains(strings.Trim(u.Path, "/"), "/") {
		return nil, errors.New(
			"this is not a URL of ClickHouse: expected http://user:password@host:8123/database; write / # ? % @ in a password as %2F %23 %3F %25 " +
				"%40")
	}
	database := strings.Trim(u.Path, "/")
	x := &Index{base: url.URL{Scheme: u.Scheme, Host: u.Host, Path: "/"}, user: u.User, settle: Settle, blockRows: blockRows}
	if database != "" {
		x.base.RawQuery = url.Values{"database": {database}}.Encode()
	}
	if transport == nil {
		// net/http repeats a request if an idle connection fails
		transport = &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}
	}
	x.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return x, nil
}

// String returns the address of the server, without secrets.
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

// readSettings reads which of the wanted settings the server has: an old server refuses the
// others.
func (x *Index) readSettings(ctx context.Context) (map[string]bool, error) {
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
	x.settings.Store(&has)
	return has, nil
}

// insert sends one block. token names it.
func (x *Index) insert(ctx context.Context, token string, block []byte) (err error) {
	var has map[string]bool
	if read := x.settings.Load(); read != nil {
		has = *read
	} else if has, err = x.readSettings(ctx); err != nil {
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

// send sends a body in one piece. sent is true if the server may have read it.
func (x *Index) send(ctx context.Context, settings url.Values, body []byte) (answer []byte, sent bool, err error) {
	at := x.base
	values := at.Query()
	maps.Copy(values, settings)
	at.RawQuery = values.Encode()
	var connected atomic.Bool // without a connection, nothing was sent
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, at.String(), bytes.NewReader(body))
	if err != nil {
		return nil, false, fmt.Errorf("ask ClickHouse: %w", err)
	}
	r.GetBody = nil // nothing must send it twice
	if password, ok := x.user.Password(); x.user != nil {
		r.Header.Set("X-ClickHouse-User", x.user.Username())
		if ok {
			r.Header.Set("X-ClickHouse-Key", password)
		}
	}
	response, err := x.client.Do(r)
	if err != nil {
		if !connected.Load() {
			return nil, false, fmt.Errorf("%w: %w", ErrAway, withoutURL(err))
		}
		return nil, true, withoutURL(err)
	}
	defer response.Body.Close() // it was only read
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

// withoutPassword removes the password from a response that repeats it, as a proxy's error
// page may.
func (x *Index) withoutPassword(answer []byte) []byte {
	if password, _ := x.user.Password(); x.user != nil && password != "" {
		return bytes.ReplaceAll(answer, []byte(password), []byte("[password]"))
	}
	return answer
}

// printable returns the beginning of a response for an error. Errors go into logs, onto
// terminals and into the row of a job, and Postgres stores no zero byte.
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

// transient reports whether an exception code of ClickHouse has a cause other than the
// statement: time, memory, connections, parts, replicas, shutdown.
func transient(code int) bool {
	switch code {
	case 159, 160, 164, 198, 201, 202, 203, 209, 210, 225, 236, 241, 242, 243, 252, 279, 285, 286, 319, 394, 425, 439, 999:
		return true
	}
	return false
}

// statusError returns the error of a response with another status than 200.
func statusError(status int, answer []byte) error {
	err := fmt.Errorf("status %d: %s", status, printable(answer))
	m := codePattern.FindSubmatch(answer)
	if m == nil {
		return err // from a proxy
	}
	if code, bad := strconv.Atoi(string(m[1])); bad == nil && !transient(code) {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return err
}
