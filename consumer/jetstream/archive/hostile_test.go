package archive_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer/jetstream/archive"
)

const (
	oneListed  = `{"name":"a.jss","eventCount":9,"minSeq":1,"maxSeq":9,"minWitnessedAt":1,"maxWitnessedAt":1789000000000000}`
	onePlanned = `{"name":"a.jss","checksum":"00000000000000ff","minSeq":1,"maxSeq":9,"mode":"segment"}`
)

// lying returns a client of a server that responds with these bodies: the number of the request replaces %d.
func lying(t *testing.T, list, plan string) *archive.Client {
	t.Helper()
	var calls atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := plan
		if strings.HasSuffix(r.URL.Path, "listSegments") {
			body = list
		}
		w.Write([]byte(strings.ReplaceAll(body, "%d", fmt.Sprint(calls.Add(1))))) // the client may have gone
	}))
	t.Cleanup(s.Close)
	c, err := archive.New(archive.Config{Endpoints: []string{"ws" + strings.TrimPrefix(s.URL, "http")}, Retry: time.Nanosecond})
	require.NoError(t, err)
	return c
}

// TestPlansOfAHostileServerAreRefused shows what a server cannot make Weir hold, request or show: names that are none,
// numbers and times that no event has, and plans that do not end.
func TestPlansOfAHostileServerAreRefused(t *testing.T) {
	t.Parallel()
	list := func(old, lie string) string { return `{"segments":[` + strings.Replace(oneListed, old, lie, 1) + `]}` }
	plan := func(old, lie string) string {
		return `{"plannedThroughSeq":9,"sealedTipSeq":9,"segments":[` + strings.Replace(onePlanned, old, lie, 1) + `]}`
	}
	good := list("", "")
	p, err := lying(t, good, plan("", "")).Plan(t.Context(), everything())
	require.NoError(t, err)
	require.Equal(t, 3, p.Calls)
	for _, test := range []struct{ list, plan, cause string }{
		{"<html>", "", "listSegments: invalid character '<'"},
		{good, "<html>", "planSnapshot: invalid character '<'"},
		{list("a.jss", "../a"), "", "impossible name"},
		{list("a.jss", strings.Repeat("a", 101)), "", "impossible name"},
		{good, plan("a.jss", `a\u0000`), "impossible name"},
		{list(`"maxSeq":9`, `"maxSeq":9223372036854775808`), "", "cannot unmarshal number"},
		{list(`"eventCount":9`, `"eventCount":9223372036854775807`), "", "bounds in the listing are impossible"},
		{list(`"eventCount":9`, `"eventCount":-9223372036854775807`), "", "bounds in the listing are impossible"},
		{list("1789000000000000", "253402300800000000"), "", "bounds in the listing are impossible"},
		{list(`"minWitnessedAt":1`, `"minWitnessedAt":-62135596800000000`), "", "bounds in the listing are impossible"},
		{good, plan("00000000000000ff", "0"), "entry in the plan is impossible"},
		{good, plan(`"segment"`, `"blocks","blocks":[{"first":0,"last":9223372036854775807}]`), "entry in the plan is impossible"},
		{good, `{"plannedThroughSeq":0,"sealedTipSeq":9}`, "no progress"},
		{list(`"maxSeq":9`, `"maxSeq":9223372036854775807`), `{"plannedThroughSeq":%d,"sealedTipSeq":9223372036854775807}`, "no end"},
		{good, plan("}", `},`+strings.Replace(onePlanned, `"minSeq":1`, `"minSeq":0`, 1)), "the plan is not in order"},
	} {
		_, err := lying(t, test.list, test.plan).Plan(t.Context(), everything())
		require.ErrorContains(t, err, test.cause, "%.300s %.300s", test.list, test.plan)
	}
}
