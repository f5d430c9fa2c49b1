package app

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ops/doctor"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// TestDoctorChecksWhatIsConfigured checks relays: each that does not work has a line of its own.
func TestDoctorChecksWhatIsConfigured(t *testing.T) {
	t.Parallel()
	relays, err := simnet.NewNostr(simnet.NostrConfig{Seed: 3, Authors: 2, Now: time.Now(), Relays: []simnet.NostrRelay{{Page: 10}}})
	require.NoError(t, err)
	t.Cleanup(relays.Stop)
	relay := relays.URLs()[0]
	refuses := httptest.NewServer(http.NotFoundHandler())
	refuses.Close()
	nothing := "ws" + refuses.URL[len("http"):]
	found := func(c Config, urls ...string) map[string]doctor.Finding {
		c.features = Features()
		require.NoError(t, c.SetEndpoints("nostr", urls))
		c.Source, c.Verify, c.Collections, c.Retention = "jetstream", VerifyWhole, []string{"nostr.1"}, time.Hour
		const within = 20 * time.Second
		var some []doctor.Check
		for _, check := range c.checks(within, c.pool(within)) {
			if check.Name == "nostr" {
				some = append(some, check)
			}
		}
		all := map[string]doctor.Finding{}
		for _, f := range doctor.Run(t.Context(), within, some...) {
			all[f.Check] = f
		}
		return all
	}

	all := found(Config{}, relay, nothing)
	require.Equal(t, doctor.OK, all["nostr "+relay[len("ws://"):]].Level, "%+v", all)
	require.Equal(t, doctor.Fail, all["nostr "+nothing[len("ws://"):]].Level, "another relay does not have its events: %+v", all)
}
