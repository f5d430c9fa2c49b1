package ranking

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/schema"
)

// Health returns what the ranking adds to the report of Weir's health.
func Health() health.Feature {
	const pending, age, wrong, condition = "counts_pending", "counts_seconds_ago", "counts_wrong", "WeirCountsWrong"
	return health.Feature{
		Figures: []health.Figure{
			{Name: pending, Metric: "counts_pending",
				Help: "Changes that the ranking's counts do not contain yet, up to 100,000. Readers correct them."},
			{Name: age, Metric: "counts_age_seconds", Optional: true,
				Help: "Time since the time for which the ranking's counts are kept. Up to a minute while nothing changes; grows if no worker runs."},
			{Name: wrong, Metric: "counts_wrong",
				Help: "Counts of the last sample of links that differed from a recount of their shares. Expect zero."},
		},
		Conditions: []health.Condition{{Name: condition, Severity: health.Warning, Do: "weir recount --check, then weir recount"}},
		Read: func(ctx context.Context, db schema.DB, now time.Time) (read health.Reading, err error) {
			c, err := readCounting(ctx, db)
			if err != nil {
				return read, err
			}
			read.Values = map[string]float64{pending: float64(c.Pending), wrong: float64(c.Wrong)}
			if c.AsOf != nil {
				read.Values[age] = max(0, now.Sub(*c.AsOf).Seconds()) // a server's clock may be ahead of ours
			}
			if c.Wrong > 0 {
				read.Messages = map[string]string{condition: fmt.Sprintf("%d counts of the last sample are not what the shares say", c.Wrong)}
			}
			return read, nil
		},
	}
}

// counting is how far the counts are.
type counting struct {
	Pending int64      // changes that are not counted yet, up to reportedPending
	AsOf    *time.Time // the time at which the counted windows end; nil: nothing is counted yet
	Wrong   int64      // counts of the last sample that differed from the shares
}

// reportedPending is the most pending changes that are counted.
const reportedPending = 100_000

func readCounting(ctx context.Context, db schema.DB) (counting, error) {
	const sql = `
SELECT (SELECT count(*) FROM (SELECT FROM pending_counts LIMIT $1) AS p)  AS pending,
       (SELECT as_of FROM count_state)                                    AS as_of,
       coalesce((SELECT wrong FROM count_checks), 0)::bigint              AS wrong`
	return schema.One(ctx, db, "read the state of the counts", pgx.RowToStructByName[counting], sql, reportedPending)
}
