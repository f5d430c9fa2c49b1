package simnet

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// session is the session that a token belongs to.
type session struct {
	did     string
	refresh bool
	until   time.Time
	revoked bool
}

// sessions holds the issued tokens. They look like JWTs but are not signed.
type sessions struct {
	mu       sync.Mutex
	tokens   map[string]*session
	password string
	life     time.Duration
	status   int
	required bool
}

func (s *sessions) start(cfg Config) {
	s.tokens, s.required = map[string]*session{}, cfg.RequireLogin
	s.password = cmp.Or(cfg.Password, "wxyz-abcd-2345-mnop")
	s.life = cmp.Or(cfg.TokenLife, 2*time.Hour)
	s.status = cmp.Or(cfg.ExpiredStatus, http.StatusUnauthorized)
}

// Password returns the app password of every account.
func (n *Net) Password() string { return n.sessions.password }

// ExpireTokens makes every access token expire now; refresh tokens stay valid.
func (n *Net) ExpireTokens() { n.sessions.end(func(s *session) { s.until = time.Time{} }, false) }

// RevokeSessions ends every session, including refresh tokens, as if the app
// password was revoked.
func (n *Net) RevokeSessions() { n.sessions.end(func(s *session) { s.revoked = true }, true) }

func (s *sessions) end(do func(*session), refreshToo bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.tokens {
		if refreshToo || !one.refresh {
			do(one)
		}
	}
}

func (s *sessions) expired() *xrpcError {
	return &xrpcError{s.status, "ExpiredToken", "Token has expired"}
}

// admit checks the token of a call. A call without a token passes if no login is
// required.
func (s *sessions) admit(token string, appView bool, now time.Time) error {
	if token == "" {
		if s.required && appView {
			return &xrpcError{http.StatusUnauthorized, "AuthMissing", "Authentication Required"}
		}
		return nil
	}
	_, err := s.check(token, false, now)
	return err
}

func (s *sessions) check(token string, refresh bool, now time.Time) (did string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.tokens[token]
	switch {
	case one == nil || one.refresh != refresh:
		return "", &xrpcError{s.status, "InvalidToken", "Token could not be verified"}
	case one.revoked && refresh:
		return "", &xrpcError{s.status, "ExpiredToken", "Token has been revoked"}
	case one.revoked || !now.Before(one.until):
		return "", s.expired()
	}
	return one.did, nil
}

// grant issues a pair of tokens.
func (s *sessions) grant(did string, now time.Time) (access, refresh string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	token := func(scope string, until time.Time) string {
		part := func(v map[string]any) string {
			data, _ := json.Marshal(v) // strings and numbers
			return base64.RawURLEncoding.EncodeToString(data)
		}
		id := fmt.Sprintf("%s-%d", scope, len(s.tokens))
		jwt := part(map[string]any{"typ": "at+jwt", "alg": "ES256K"}) + "." +
			part(map[string]any{"scope": scope, "sub": did, "iat": now.Unix(), "exp": until.Unix(), "jti": id}) + "." +
			base64.RawURLEncoding.EncodeToString([]byte(id))
		s.tokens[jwt] = &session{did: did, refresh: scope == "com.atproto.refresh", until: until}
		return jwt
	}
	return token("com.atproto.appPass", now.Add(s.life)), token("com.atproto.refresh", now.Add(60*24*time.Hour))
}

func (v *visit) createSession() (any, error) {
	var in struct{ Identifier, Password string }
	if err := json.Unmarshal(v.body, &in); err != nil || in.Identifier == "" || in.Password == "" {
		return nil, invalid("Error: Input must have the properties \"identifier\" and \"password\"")
	}
	p := v.index.actor(in.Identifier)
	if p == nil || p.status == "deleted" || in.Password != v.net.sessions.password {
		return nil, &xrpcError{http.StatusUnauthorized, "AuthenticationRequired", "Invalid identifier or password"}
	}
	return v.session(p)
}

func (v *visit) refreshSession() (any, error) {
	if v.bearer == "" {
		return nil, &xrpcError{http.StatusUnauthorized, "AuthMissing", "Authentication Required"}
	}
	did, err := v.net.sessions.check(v.bearer, true, time.Now())
	if err != nil {
		return nil, err
	}
	return v.session(v.index.byDID[did])
}

// session opens a session for an account; deactivated accounts may log in.
func (v *visit) session(p *member) (any, error) {
	if p.status == "takendown" || p.status == "suspended" || p.status == "deleted" {
		return nil, &xrpcError{http.StatusUnauthorized, "AccountTakedown", "Account has been taken down"}
	}
	access, refresh := v.net.sessions.grant(p.did, time.Now())
	out := map[string]any{"did": p.did, "handle": p.handle, "accessJwt": access, "refreshJwt": refresh,
		"active": p.status == "", "didDoc": v.net.document(p), "email": "account@example.com", "emailConfirmed": true}
	if p.status != "" {
		out["status"] = p.status
	}
	return out, nil
}
