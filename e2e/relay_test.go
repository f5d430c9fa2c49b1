package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/ops/doctor"
	"github.com/weir-social/weir/schema/schematest"
	"github.com/weir-social/weir/simnet"
)

// TestKilledServeReadsRelay kills a process that reads only a relay, which restarts,
// renumbers and repeats itself meanwhile. The tables are those of the oracle.
func TestKilledServeReadsRelay(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n := busyNetwork(t)
	server := schematest.Server(t)
	url := server.URL("weir")
	k := begin(t, n, server, url, url, "WEIR_SOURCE=firehose", "WEIR_RELAYS="+n.RelayURL(), "WEIR_JETSTREAM=ws://127.0.0.1:1")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go n.Live(ctx, 300)
	for _, fault := range []simnet.Fault{simnet.Cut, simnet.Renumber, simnet.Stale, simnet.Duplicate, simnet.Restart} {
		k.progress(5)
		k.process.kill()
		require.NoError(t, n.Do(fault))
		k.process = start(t, k.env, "serve")
	}
	k.progress(5)
	cancel()

	require.Regexp(t, `\bjetstream +.* firehose +`+n.Address(), succeed(t, k.env, "status"))
	found, _ := examined(t, k.env)
	require.Equal(t, doctor.OK, finding(t, found, "firehose "+n.Address()).Level)
	require.False(t, strings.Contains(k.process.stderr.String(), "gap_opened"), k.process.stderr.String())
	k.compare()
}

// TestDemoReadsRelay shows ranked links of a demo that reads the relay.
func TestDemoReadsRelay(t *testing.T) {
	t.Parallel()
	env := []string{"WEIR_HOME=" + t.TempDir(), "WEIR_LISTEN=127.0.0.1:0", "WEIR_OPS_LISTEN=127.0.0.1:0"}
	_, refused, code := weir(t, env, "demo", "--source", "elsewhere")
	require.Equal(t, 1, code)
	require.Contains(t, refused, `--source: "elsewhere" is no source: expected jetstream or firehose`)
	url := start(t, env, "demo", "--source", "firehose").page(t)
	require.Eventually(t, func() bool {
		page, err := get(url)
		return err == nil && strings.Contains(page, ".example/")
	}, time.Minute, 50*time.Millisecond)
	require.Regexp(t, ` firehose +127`, succeed(t, env, "status"))
}
