package nostr_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/nostr"
	"github.com/weir-social/weir/consumer/socket"
)

// TestRelayThatDoesNotServeIsAskedLess covers a relay that accepts each connection and sends
// messages, but never serves a request. The waits grow, and the failures are counted.
func TestRelayThatDoesNotServeIsAskedLess(t *testing.T) {
	t.Parallel()
	signed := note(t, "")
	for name, c := range map[string]struct {
		key    bool
		script func(*scripted)
	}{
		"it demands a key, and none is configured": {false, func(s *scripted) {
			s.say(`["AUTH","who is there"]`)
			_, sub := s.hear()
			s.say(`["CLOSED",%q,"auth-required: who are you?"]`, sub)
			s.hear()
		}},
		"it knows the key, and does not serve it": {true, func(s *scripted) {
			s.say(`["AUTH","who is there"]`)
			_, sub := s.hear()
			s.hear()
			s.say(`["OK","",true,""]`)
			s.say(`["CLOSED",%q,"restricted: members only"]`, sub)
			s.hear()
		}},
		"it fails in its past": {true, func(s *scripted) {
			s.open(1)
			_, sub := s.hear()
			s.say(`["EVENT",%q,%s]`, sub, signed)
			s.say(`["EOSE",%q]`, sub)
			s.hear()
			s.hear()
		}},
		"it ends the subscription when its past was read": {true, func(s *scripted) {
			s.open(1)
			for range 4 { // two pages, each with its CLOSE
				if kind, sub := s.hear(); kind == "REQ" {
					s.say(`["EOSE",%q]`, sub)
				}
			}
			s.say(`["CLOSED","live0","blocked: that is all"]`)
			s.hear()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := nostr.Config{
				Kinds: stored(), Verifier: nostr.NewVerifier(nostr.VerifierConfig{}),
				Config: socket.Config{Endpoints: []string{scriptedRelay(t, c.script)}, MinWait: time.Millisecond},
			}
			if c.key {
				cfg.Key = &[32]byte{31: 5}
			}
			source, err := nostr.New(cfg)
			require.NoError(t, err)
			require.NoError(t, source.SetFilter(t.Context(), filterOf(0)))
			var tries []consumer.Attempt
			for range 6 {
				conn, err := source.Connect(t.Context(), func(string) consumer.Cursor {
					return consumer.Cursor{Kind: consumer.CursorTime, Value: time.Now().UnixMicro()}
				},
					func(a consumer.Attempt) { tries = append(tries, a) })
				require.NoError(t, err)
				var m consumer.Message
				for err == nil {
					var f consumer.Frame
					if f, err = conn.Next(t.Context()); err == nil {
						err = conn.Decode(f, &m)
					}
				}
				conn.Close() // the attempt is over
			}
			require.Len(t, tries, 5)
			for i, a := range tries {
				require.Equal(t, i+1, a.Failed, a.Err)
				require.True(t, i == 0 || a.Wait > tries[i-1].Wait, "a wait of %s after one of %s", a.Wait, tries[max(0, i-1)].Wait)
			}
		})
	}
}
