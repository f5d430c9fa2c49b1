package e2e

import (
	"flag"
	"time"
)

// The flags of these tests and benchmarks, such as in go test ./e2e -run Chaos -chaos 30m -seed 1.
var (
	chaosLength = flag.Duration("chaos", 0, "how long TestChaos runs, in whole rounds; 0: one round with half of the faults")
	chaosSeed   = flag.Uint64("seed", 0, "the seed of the first round of chaos; 0: a new one")
	soakLength  = flag.Duration("soak", 6*time.Second, "how long TestSoak runs")
	reportFile  = flag.String("report", "", "a file for the report of the chaos test or the soak, as Markdown")

	weekEvents   = flag.Int("week-events", 100, "the events of a day in TestWeekOfTwoNetworks")
	nostrEvents  = flag.Int("nostr-events", 0, "the events in TestSharesOfNostrEqualTheFold; 0: 600, and no job waits for its rescue")
	layerRecords = flag.Int("layers-records", 0, "the records of each wire in TestLayers; 0: 360, and no check waits its full time")

	benchSizes  = flag.String("sizes", "", "the numbers of stored posts to compare costs at; by default 100000,1000000, with -short 10000")
	benchTurns  = flag.Int("turns", 0, "how often each case of a comparison runs; by default 10 times, with -short once")
	pageShares  = flag.Int("page-shares", 0, "the shares of a day in BenchmarkWholePage; by default 200000, with -short 20000")
	pastEvents  = flag.Int("network-events", 0, "the events of the past in BenchmarkNetworkBackfill; by default 200000, with -short 20000")
	releaseName = flag.String("release", "", "the release whose database TestRelease writes into schema/testdata/releases, such as v0.1.0")
	baseBinary  = flag.String("base", "", "the binary that BenchmarkAgainst compares with")
	writeImages = flag.Bool("update", false, "write the picture in the README")
)
