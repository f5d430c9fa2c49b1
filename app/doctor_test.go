package app

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ops/doctor"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// TestDoctorChecksWhatIsConfigured checks relays, the archive's store and ClickHouse: each that does not work has a line of its own.
func TestDoctorChecksWhatIsConfigured(t *testing.T) {
	t.Parallel()
	relays, err := simnet.NewNostr(simnet.NostrConfig{Seed: 3, Authors: 2, Now: time.Now(), Relays: []simnet.NostrRelay{{Page: 10}}})
	require.NoError(t, err)
	t.Cleanup(relays.Stop)
	relay := relays.URLs()[0]
	refuses := httptest.NewServer(http.NotFoundHandler())
	refuses.Close()
	clickhouse := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sql, err := io.ReadAll(r.Body)
		switch {
		case err != nil || !strings.Contains(fmt.Sprint(r.Header), "correct"):
			w.WriteHeader(http.StatusUnauthorized)
		case strings.Contains(string(sql), "system.settings"):
			fmt.Fprintln(w, "max_block_size")
		default:
			fmt.Fprintln(w, "0")
		}
	}))
	t.Cleanup(clickhouse.Close)
	root := t.TempDir()
	nothing := "ws" + refuses.URL[len("http"):]
	found := func(c Config, urls ...string) map[string]doctor.Finding {
		c.features = Features()
		require.NoError(t, c.SetEndpoints("nostr", urls))
		c.Source, c.Verify, c.Collections, c.Retention = "jetstream", VerifyWhole, []string{"nostr.1"}, time.Hour
		const within = 20 * time.Second
		var some []doctor.Check
		for _, check := range c.checks(within, c.pool(within)) {
			if check.Name == "nostr" || check.Name == "archive" || check.Name == "clickhouse" {
				some = append(some, check)
			}
		}
		all := map[string]doctor.Finding{}
		for _, f := range doctor.Run(t.Context(), within, some...) {
			all[f.Check] = f
		}
		return all
	}

	all := found(Config{Archive: "dir:" + root, ClickHouse: "http://weir:secret@" + clickhouse.Listener.Addr().String() + "/weir"}, relay, nothing)
	require.Equal(t, doctor.OK, all["nostr "+relay[len("ws://"):]].Level, "%+v", all)
	require.Equal(t, doctor.Fail, all["nostr "+nothing[len("ws://"):]].Level, "another relay does not have its events: %+v", all)
	require.Equal(t, doctor.OK, all["archive"].Level, "%+v", all)
	left, err := os.ReadDir(root)
	require.NoError(t, err)
	require.Empty(t, left)
	require.Equal(t, doctor.Fail, all["clickhouse"].Level, "%+v", all)
	require.NotContains(t, all["clickhouse"].Message, "secret")
	require.Contains(t, all["clickhouse"].Do, "WEIR_CLICKHOUSE")

	require.NoError(t, os.Remove(root))
	all = found(Config{Archive: "dir:" + root, ClickHouse: "http://weir:correct@" + clickhouse.Listener.Addr().String() + "/weir"})
	require.Equal(t, doctor.Fail, all["archive"].Level, "%+v", all)
	require.Equal(t, doctor.OK, all["clickhouse"].Level, "%+v", all)
}
