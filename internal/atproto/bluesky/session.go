package bluesky

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"
)

const (
	createSession  = "com.atproto.server.createSession"
	refreshSession = "com.atproto.server.refreshSession"

	// loginPause is how long to wait after a rejected login: otherwise every call
	// would retry it until the server locks the account.
	loginPause = 5 * time.Minute
	// maxToken limits a token, in bytes: it goes into a header.
	maxToken = 16 << 10
)

// session is the login's session. Only the holder of turn may use it.
type session struct {
	pds   string // origin
	login Login
	turn  chan struct{} // a lock with cancellable waits

	access, refresh string
	refused         error // why the login was rejected
	pausedUntil     time.Time
}

func newSession(pds string, login Login) *session {
	return &session{pds: pds, login: login, turn: make(chan struct{}, 1)}
}

// token returns an access token other than stale. If many calls find the same token
// stale, one of them renews it.
func (c *Client) token(ctx context.Context, stale string) (string, error) {
	s := c.session
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return "", c.explain(ctx, request{call: createSession}, ctx.Err())
	}
	if s.access != "" && s.access != stale {
		return s.access, nil
	}
	if time.Now().Before(s.pausedUntil) {
		return "", s.refused
	}
	s.access = ""
	if s.refresh != "" {
		err := c.renew(ctx, request{call: refreshSession, token: s.refresh})
		if err == nil || Classify(err) != Permanent {
			return s.access, err
		}
		s.refresh = ""
	}
	body, err := json.Marshal(map[string]string{"identifier": s.login.Identifier, "password": s.login.Password})
	if err != nil {
		return "", badInput(createSession, "the login is not UTF-8")
	}
	err = c.renew(ctx, request{call: createSession, body: body})
	if e, ok := errors.AsType[*Error](err); ok && e.Class == Permanent {
		e.cause = ErrLogin
		s.refused, s.pausedUntil = e, time.Now().Add(loginPause)
	}
	return s.access, err
}

// renew sends r and stores the tokens of its response.
func (c *Client) renew(ctx context.Context, r request) error {
	s := c.session
	r.method, r.origin, r.path, r.login = http.MethodPost, s.pds, "/xrpc/"+r.call, true
	r.read = func(body []byte) error {
		fields, err := readObject(body)
		if err != nil {
			return err
		}
		access, refresh := text(fields["accessJwt"]), text(fields["refreshJwt"])
		if !isToken(access) || !isToken(refresh) {
			return malformed("the session has no tokens")
		}
		s.access, s.refresh = access, refresh
		return nil
	}
	return c.do(ctx, r)
}

func isToken(s string) bool {
	if s == "" || len(s) > maxToken {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// expired reports whether an error requires a new session. A PDS reports an expired
// token with status 400.
func expired(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && (e.Status == http.StatusUnauthorized ||
		e.Status == http.StatusBadRequest && (e.Name == "ExpiredToken" || e.Name == "InvalidToken"))
}
