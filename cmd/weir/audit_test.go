package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
)

func TestPrintAudit(t *testing.T) {
	t.Parallel()
	var w strings.Builder
	at, score := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC), 1.0
	printAudit(&w, schema.Audit{Accounts: 2, Failures: 1, Pending: 1, Records: 1, Score: &score, From: &at, To: &at,
		Compared: []schema.Compared{{DID: "did:plc:a", Records: 1, From: at, To: at}}}, nil)
	require.Contains(t, w.String(), "\n1 record of 1 account from 2026-07-04T12:00:00Z to ")
	require.Contains(t, w.String(),
		"; 1 account could not be read; 1 account was left out, because the first read of its records has not ended\n")
}
