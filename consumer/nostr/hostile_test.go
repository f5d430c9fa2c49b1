package nostr_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/nostr"
	"github.com/weir-social/weir/consumer/socket"
	protocol "github.com/weir-social/weir/internal/nostr"
)

// scripted is the server side of a connection to a relay that follows a test's script.
type scripted struct {
	ctx context.Context
	ws  *websocket.Conn
}

// say sends a message. It returns false if the client has disconnected.
func (s *scripted) say(format string, args ...any) bool {
	return s.ws.Write(s.ctx, websocket.MessageText, fmt.Appendf(nil, format, args...)) == nil
}

// hear returns the kind and the subscription of the next message, or "" if the client has
// disconnected.
func (s *scripted) hear() (kind, sub string) {
	var parts []json.RawMessage
	_, message, err := s.ws.Read(s.ctx)
	if err != nil || json.Unmarshal(message, &parts) != nil || json.Unmarshal(parts[0], &kind) != nil {
		return "", ""
	}
	json.Unmarshal(parts[1], &sub) // fails for AUTH, whose second part is an event
	return kind, sub
}

// scriptedRelay starts a relay. Each connection runs the script and closes after it.
func scriptedRelay(t *testing.T, script func(*scripted)) (url string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") == "application/nostr+json" {
			fmt.Fprint(w, `{"limitation":{"max_limit":10,"max_subscriptions":20,"max_message_length":2048}}`)
			return
		}
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer ws.CloseNow() // the script is over
		script(&scripted{r.Context(), ws})
	}))
	t.Cleanup(server.Close)
	return "ws" + strings.TrimPrefix(server.URL, "http")
}

// scriptedSource reads a scripted relay for this many authors; 0 means everyone.
func scriptedSource(t *testing.T, url string, authors int) *nostr.Client {
	t.Helper()
	source, err := nostr.New(nostr.Config{
		Kinds: stored(), Verifier: nostr.NewVerifier(nostr.VerifierConfig{}), Key: &[32]byte{31: 5},
		Config: socket.Config{Endpoints: []string{url}},
	})
	require.NoError(t, err)
	require.NoError(t, source.SetFilter(t.Context(), filterOf(authors)))
	return source
}

func filterOf(authors int) consumer.Filter {
	f := consumer.Filter{Everyone: authors == 0}
	for i := range authors {
		f.Accounts = append(f.Accounts, fmt.Sprintf("did:nostr:%064x", i))
	}
	return f
}

// listen connects from a position and decodes until the connection ends. It returns the number of
// events and the reason.
func listen(t *testing.T, source *nostr.Client, each func(*consumer.Message)) (events int, ended error) {
	t.Helper()
	conn, err := source.Connect(t.Context(), func(string) consumer.Cursor {
		return consumer.Cursor{Kind: consumer.CursorTime, Value: time.Now().Add(-time.Hour).UnixMicro()}
	}, nil)
	require.NoError(t, err)
	defer conn.Close() // the test is over
	for {
		f, err := conn.Next(t.Context())
		if err != nil {
			return events, err
		}
		var m consumer.Message
		if err := conn.Decode(f, &m); err != nil {
			return events, err
		}
		events += len(m.Events)
		if each != nil {
			each(&m)
		}
	}
}

// note returns the JSON of a signed note.
func note(t *testing.T, text string) []byte {
	t.Helper()
	e := &protocol.Event{CreatedAt: time.Now().Unix(), Kind: 1, Tags: [][]string{}, Content: text}
	require.NoError(t, e.Sign([32]byte{31: 9}))
	return e.AppendJSON(nil)
}

// open reads the REQ of each live subscription, and sends the end of its stored events.
func (s *scripted) open(subscriptions int) {
	for range subscriptions {
		_, sub := s.hear()
		s.say(`["EOSE",%q]`, sub)
	}
}

// TestMessagesWithoutASubscriptionEndNothing shows that messages without a known subscription do
// not end a page.
func TestMessagesWithoutASubscriptionEndNothing(t *testing.T) {
	t.Parallel()
	signed := note(t, "")
	noise := func(s *scripted) {
		for _, sub := range []string{"", "page7", "other"} {
			s.say(`["EVENT",%q,%s]`, sub, signed)
			s.say(`["EOSE",%q]`, sub)
			s.say(`["CLOSED",%q,"auth-required: who are you?"]`, sub)
			s.say(`["CLOSED",%q,"error: no"]`, sub)
		}
		s.say(`["EVENT","",{}]`)
		s.say(`["OK","",true]`)
	}
	url := scriptedRelay(t, func(s *scripted) {
		s.hear()
		noise(s)
		s.say(`["EOSE","live0"]`)
		for range 4 { // two pages, each with its CLOSE
			if kind, sub := s.hear(); kind == "REQ" {
				noise(s)
				s.say(`["EOSE",%q]`, sub)
			}
		}
		noise(s)
		s.say(`["NOTICE","the end"]`)
		s.ws.Close(websocket.StatusNormalClosure, "as planned") // the script is over
	})
	moved := 0
	events, err := listen(t, scriptedSource(t, url, 0), func(m *consumer.Message) {
		if m.TimeUS > 0 && len(m.Events) == 0 {
			moved++
		}
	})
	require.ErrorContains(t, err, "as planned")
	require.Equal(t, 4*3, events)
	require.Equal(t, 1, moved)
}

// TestPageWithoutEndEndsTheConnection covers pages of events, of invalid events and of invalid
// JSON.
func TestPageWithoutEndEndsTheConnection(t *testing.T) {
	t.Parallel()
	signed := note(t, "")
	for name, message := range map[string]string{"one event": string(signed), "no event": "{}", "no JSON": "]"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := scriptedRelay(t, func(s *scripted) {
				s.open(1)
				_, sub := s.hear()
				for s.say(`["EVENT",%q,%s]`, sub, message) { // until the client disconnects
				}
			})
			_, err := listen(t, scriptedSource(t, url, 0), nil)
			require.EqualError(t, err, "the relay sends more than the 10 events of a page")
		})
	}
}

// TestRelayThatSendsNothingReadableIsMissed shows that such a relay is not read for ever, and that
// the whole time is recorded as missed.
func TestRelayThatSendsNothingReadableIsMissed(t *testing.T) {
	t.Parallel()
	var pages atomic.Int64
	url := scriptedRelay(t, func(s *scripted) {
		s.open(1)
		for kind, sub := s.hear(); kind != ""; kind, sub = s.hear() {
			if kind != "REQ" {
				continue
			}
			pages.Add(1)
			for range 10 {
				s.say(`["EVENT",%q,{}]`, sub)
			}
			s.say(`["EOSE",%q]`, sub)
		}
	})
	since := time.Now().Add(-24 * time.Hour)
	conn, err := scriptedSource(t, url, 0).Connect(t.Context(), func(string) consumer.Cursor {
		return consumer.Cursor{Kind: consumer.CursorTime, Value: since.UnixMicro()}
	}, nil)
	require.NoError(t, err)
	defer conn.Close() // the test is over
	missed := map[int64]bool{}
	var m consumer.Message
	for m.TimeUS == 0 {
		f, err := conn.Next(t.Context())
		require.NoError(t, err)
		require.NoError(t, conn.Decode(f, &m))
		if m.Missed == nil {
			continue
		}
		require.True(t, m.Missed.From.Before(m.Missed.To))
		for at := m.Missed.From.Unix(); at < m.Missed.To.Unix() && at <= time.Now().Unix(); at++ {
			missed[at] = true
		}
	}
	for at := since.Unix(); at <= m.TimeUS/1e6; at++ {
		require.True(t, missed[at], time.Unix(at, 0))
	}
	require.Less(t, pages.Load(), int64(5000))
}

// TestRelayThatDoesNotAnswerIsLeft covers a relay that replies to pings, but ignores a request,
// never ends a page, or never confirms the authentication.
func TestRelayThatDoesNotAnswerIsLeft(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]func(s *scripted){
		"the subscription": func(*scripted) {},
		"the page":         func(s *scripted) { s.open(1) },
		"the end of the page": func(s *scripted) {
			s.open(1)
			_, sub := s.hear()
			s.say(`["EVENT",%q,%s]`, sub, note(t, ""))
		},
		"the authentication": func(s *scripted) {
			_, sub := s.hear()
			s.say(`["AUTH","who is there"]`)
			s.say(`["CLOSED",%q,"auth-required: who are you?"]`, sub)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := scriptedRelay(t, func(s *scripted) {
				script(s)
				for kind, _ := s.hear(); kind != ""; kind, _ = s.hear() {
					s.say(`["NOTICE","patience"]`)
				}
			})
			source, err := nostr.New(nostr.Config{
				Kinds: stored(), Verifier: nostr.NewVerifier(nostr.VerifierConfig{}), Key: &[32]byte{31: 5}, AnswerWithin: 100 * time.Millisecond,
				Config: socket.Config{Endpoints: []string{url}},
			})
			require.NoError(t, err)
			require.NoError(t, source.SetFilter(t.Context(), filterOf(0)))
			conn, err := source.Connect(t.Context(), func(string) consumer.Cursor { return consumer.Cursor{Kind: consumer.CursorTime} }, nil)
			require.NoError(t, err)
			defer conn.Close() // the test is over
			var m consumer.Message
			for {
				f, err := conn.Next(t.Context())
				if err != nil {
					require.ErrorContains(t, err, "has not answered a request")
					return
				}
				if err := conn.Decode(f, &m); err != nil { // its time was over while it was being told who asks
					require.ErrorContains(t, err, "use of closed network connection")
				}
			}
		})
	}
}

// TestEverySubscriptionIsOpenBeforeThePastIsRead shows that a repeated EOSE counts for one
// subscription only.
func TestEverySubscriptionIsOpenBeforeThePastIsRead(t *testing.T) {
	t.Parallel()
	heard := make(chan string, 10)
	url := scriptedRelay(t, func(s *scripted) {
		_, one := s.hear()
		_, other := s.hear()
		s.say(`["EOSE",%q]`, one)
		s.say(`["EOSE",%q]`, one)
		s.say(`["AUTH","who is there"]`)
		kind, _ := s.hear()
		heard <- kind
		s.say(`["EOSE",%q]`, other)
		kind, _ = s.hear()
		heard <- kind
	})
	_, err := listen(t, scriptedSource(t, url, 20), nil)
	require.Error(t, err)
	require.Equal(t, "AUTH", <-heard)
	require.Equal(t, "REQ", <-heard)
}

// TestFilterChangedInADial shows that a filter that changes during a dial ends that connection: it
// would otherwise read the old accounts until the next one.
func TestFilterChangedInADial(t *testing.T) {
	t.Parallel()
	url := scriptedRelay(t, func(s *scripted) {
		for kind, _ := s.hear(); kind != ""; kind, _ = s.hear() { // until the client disconnects
		}
	})
	source := scriptedSource(t, url, 2)
	dials := 0
	for range 2 {
		conn, err := source.Connect(t.Context(), func(string) consumer.Cursor {
			if dials++; dials == 1 {
				require.NoError(t, source.SetFilter(t.Context(), filterOf(3)))
			}
			return consumer.Cursor{}
		}, nil)
		require.NoError(t, err)
		defer conn.Close() // the test is over
		if dials == 1 {
			_, err = conn.Next(t.Context())
			require.EqualError(t, err, "the followed accounts have changed")
			continue
		}
		ended := make(chan error, 1)
		go func() {
			_, err := conn.Next(t.Context())
			ended <- err
		}()
		require.NoError(t, source.SetFilter(t.Context(), filterOf(3)), "an unchanged filter must not end the connection")
		require.Empty(t, ended)
		require.NoError(t, source.SetFilter(t.Context(), filterOf(4)))
		require.EqualError(t, <-ended, "the followed accounts have changed")
	}
}

// acceptsFirst accepts the client's authentication, and then refuses the request that came before
// it. It returns the subscription of the repeated request.
func (s *scripted) acceptsFirst() (sub string) {
	s.say(`["AUTH","who is there"]`)
	_, sub = s.hear()
	s.hear()
	s.say(`["OK","",true,""]`)
	s.say(`["CLOSED",%q,"auth-required: who are you?"]`, sub)
	_, sub = s.hear()
	return sub
}

// TestRelayRefusesAfterItAccepted covers a relay that read the request before the authentication
// and refuses it afterwards. The client repeats the request once.
func TestRelayRefusesAfterItAccepted(t *testing.T) {
	t.Parallel()
	url := scriptedRelay(t, func(s *scripted) {
		s.say(`["EOSE",%q]`, s.acceptsFirst())
		for range 2 {
			_, sub := s.hear()
			s.say(`["CLOSED",%q,"auth-required: who are you?"]`, sub)
		}
		s.hear()
	})
	_, err := listen(t, scriptedSource(t, url, 0), nil)
	require.EqualError(t, err, "the relay does not serve the key in WEIR_NOSTR_KEY")

	signed := note(t, "")
	author, err := protocol.Decode(signed)
	require.NoError(t, err)
	url = scriptedRelay(t, func(s *scripted) {
		sub := s.acceptsFirst()
		s.say(`["EVENT",%q,%s]`, sub, signed)
		for kind := "REQ"; kind != ""; kind, sub = s.hear() {
			if kind == "REQ" {
				s.say(`["EOSE",%q]`, sub)
			}
		}
	})
	reader := nostr.NewReader(nostr.ReaderConfig{Relays: []string{url}, Key: &[32]byte{31: 5}})
	found, _, err := reader.Latest(t.Context(), nil, []int{1}, [][32]byte{author.PubKey})
	require.NoError(t, err)
	require.Len(t, found, 1)
}

// TestOpenSubscriptionThatIsRefused shows that the connection ends: events that arrive meanwhile
// would be missed.
func TestOpenSubscriptionThatIsRefused(t *testing.T) {
	t.Parallel()
	url := scriptedRelay(t, func(s *scripted) {
		s.open(1)
		s.say(`["CLOSED","live0","auth-required: who are you?"]`)
		for kind, _ := s.hear(); kind != ""; kind, _ = s.hear() { // until the client disconnects
		}
	})
	_, err := listen(t, scriptedSource(t, url, 0), nil)
	require.EqualError(t, err, "the relay does not serve the key in WEIR_NOSTR_KEY")
}

// TestChallengesWithoutEnd shows that a client does not reply to endless challenges for ever.
func TestChallengesWithoutEnd(t *testing.T) {
	t.Parallel()
	url := scriptedRelay(t, func(s *scripted) {
		for s.say(`["AUTH","who is there"]`) {
			s.hear()
		}
	})
	_, err := listen(t, scriptedSource(t, url, 0), nil)
	require.EqualError(t, err, "the relay does not stop asking who reads it")
}
