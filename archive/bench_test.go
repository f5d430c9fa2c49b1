package archive_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/archive"
)

// BenchmarkSegment seals recorded events from open rows of 50 events and reads the
// segment back, with all checks.
func BenchmarkSegment(b *testing.B) {
	folder := os.Getenv("WEIR_TESTDATA")
	if folder == "" {
		b.Skip("WEIR_TESTDATA names no recordings")
	}
	file, err := os.ReadFile(filepath.Join(folder, "jetstream-simulated-4000.jsonl"))
	require.NoError(b, err)
	events := bytes.Split(bytes.TrimSpace(file), []byte("\n"))
	var rows [][]byte
	for at := 0; at < len(events); at += 50 {
		var raw []byte
		for _, e := range events[at:min(at+50, len(events))] {
			raw = archive.AppendRecord(raw, e)
		}
		rows = append(rows, archive.PackRow(raw))
	}
	var sealing, checking time.Duration
	var sum archive.Sum
	for b.Loop() {
		began := time.Now()
		var out bytes.Buffer
		w, err := archive.NewWriter(&out)
		require.NoError(b, err)
		for _, row := range rows {
			raw, err := archive.UnpackRow(row)
			require.NoError(b, err)
			for record := range archive.Records(raw) {
				require.NoError(b, w.Add(record))
			}
		}
		sum, err = w.Close()
		require.NoError(b, err)
		sealing += time.Since(began)
		began = time.Now()
		s, err := archive.Open(out.Bytes())
		require.NoError(b, err)
		_, err = s.Check()
		require.NoError(b, err)
		checking += time.Since(began)
	}
	n := float64(b.N)
	b.ReportMetric(float64(sum.StoredBytes)/float64(sum.Records), "B/event")
	b.ReportMetric(n*float64(sum.Records)/sealing.Seconds(), "sealed-events/s")
	b.ReportMetric(n*float64(sum.RawBytes)/checking.Seconds()/1e6, "verified-MB/s")
}
