package archive_test

import (
	"bytes"
	"crypto/sha256"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/archive"
)

// BenchmarkSegment seals recorded events from open rows of 50 events and reads the
// segment back, with all checks, 25 times per iteration. The figures are medians of the
// iterations (-benchtime 10x), by the clock and per second of processor time.
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
	const times = 25
	var sealing, sealingCPU, checking, checkingCPU []float64
	var sum archive.Sum
	for b.Loop() {
		var segment []byte
		wall, cpu := measured(b, func() {
			for range times {
				segment, sum = sealRows(b, rows)
			}
		})
		sealing, sealingCPU = append(sealing, wall), append(sealingCPU, cpu)
		wall, cpu = measured(b, func() {
			for range times {
				sha256.Sum256(segment)
				s, err := archive.Open(segment)
				require.NoError(b, err)
				_, err = s.Check()
				require.NoError(b, err)
			}
		})
		checking, checkingCPU = append(checking, wall), append(checkingCPU, cpu)
	}
	records, megabytes := times*float64(sum.Records), times*float64(sum.RawBytes)/1e6
	b.ReportMetric(float64(sum.StoredBytes)/float64(sum.Records), "B/event")
	b.ReportMetric(records/median(sealing), "sealed-events/s")
	b.ReportMetric(records/median(sealingCPU), "sealed-events/CPU-s")
	b.ReportMetric(megabytes/median(checking), "verified-MB/s")
	b.ReportMetric(megabytes/median(checkingCPU), "verified-MB/CPU-s")
	b.ReportMetric(0, "ns/op")
}

// sealRows writes a segment of open rows.
func sealRows(b *testing.B, rows [][]byte) ([]byte, archive.Sum) {
	b.Helper()
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
	sum, err := w.Close()
	require.NoError(b, err)
	return out.Bytes(), sum
}

// measured returns the elapsed seconds and the processor time of do.
func measured(b *testing.B, do func()) (wall, cpu float64) {
	b.Helper()
	processor := func() float64 {
		var u syscall.Rusage
		require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
	}
	began, before := time.Now(), processor()
	do()
	return time.Since(began).Seconds(), processor() - before
}

// median returns the middle value.
func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
