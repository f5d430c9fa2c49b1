package e2e

import (
	"context"
	"fmt"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// postgresClock names the database among the processes whose clocks are stepped.
const postgresClock = "Postgres"

// clockFaults step the wall clocks of the processes and of Postgres.
func clockFaults() []fault {
	everything := append(fleet(), postgresClock)
	var all []fault
	for _, of := range []struct {
		whose string
		names []string
	}{{"the consumers", fleet()[:2]}, {"the workers", fleet()[2:4]}, {"Postgres", everything[5:]}, {"the machine", everything}} {
		for _, step := range []struct {
			name string
			by   time.Duration
		}{{"an hour ahead", time.Hour}, {"an hour behind", -time.Hour}, {"three days ahead", 72 * time.Hour}} {
			all = append(all, fault{fmt.Sprintf("clock of %s %s, then right again", of.whose, step.name), func(c *chaos) {
				c.step(step.by, of.names...)
				c.waitForWork()
				c.step(0, of.names...)
			}})
		}
	}
	return append(all,
		fault{"clock of the consumers an hour behind, after a stall", func(c *chaos) {
			c.inject(simnet.Stall)
			c.step(-time.Hour, fleet()[:2]...)
			c.waitForWork()
			c.step(0, fleet()[:2]...)
		}},
		fault{"clock of the consumers an hour behind, and too-old", func(c *chaos) {
			c.step(-time.Hour, fleet()[:2]...)
			c.forgetUnread()
			c.step(0, fleet()[:2]...)
		}},
		fault{"clock of the consumers an hour ahead in silence, right again, and too-old", func(c *chaos) { c.silence(fleet()[:2]...) }},
		fault{"clock of Postgres an hour ahead in silence, right again, and too-old", func(c *chaos) { c.silence(postgresClock) }},
		fault{"clock of Postgres an hour behind, after SIGKILL of the consumers", func(c *chaos) {
			c.reader()
			for _, name := range fleet()[:2] {
				c.kill(name)
			}
			c.step(-time.Hour, postgresClock)
			for _, name := range fleet()[:2] {
				c.relaunch(name)
			}
			c.waitForWork()
			c.step(0, postgresClock)
		}},
		fault{"clock of the workers three days ahead, and SIGKILL", func(c *chaos) {
			c.step(72*time.Hour, fleet()[2:4]...)
			c.killAll(fleet()[2:4]...)
			c.waitForWork()
			p := c.database
			p.cut() // running jobs are retried
			p.returned(p.accepted.Load())
			c.waitForWork()
			c.step(0, fleet()[2:4]...)
			eventually.True(c.t, func() bool { // a job that waits for an account's resync is due by the database's clock
				late, err := tryCount(c.pool, `
SELECT count(*) FROM river_job AS j
WHERE finalized_at IS NULL AND scheduled_at > now() + interval '1 hour'
  AND NOT (kind = 'resync_repo' AND EXISTS (SELECT FROM resyncs AS r
      WHERE r.did = j.args ->> 'did' AND j.scheduled_at < r.due_at + interval '1 minute'))`)
				return err == nil && late == 0
			}, 20*time.Millisecond, "jobs wait for the time of the wrong clock")
		}},
	)
}

// steppableClock shadows now() and clock_timestamp(), see steppableDatabase.
const steppableClock = `
CREATE SCHEMA stepped;
CREATE TABLE stepped.clock (by interval NOT NULL);
INSERT INTO stepped.clock VALUES ('0');
CREATE FUNCTION stepped.now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT pg_catalog.now() + by FROM stepped.clock';
CREATE FUNCTION stepped.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
    AS 'SELECT pg_catalog.clock_timestamp() + by FROM stepped.clock';
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, stepped, pg_catalog', current_database()); END $$`

// steppableDatabase shadows now() and clock_timestamp() with functions that add
// the interval stored in a table. Column defaults keep the right time.
func (c *chaos) steppableDatabase() {
	c.t.Helper()
	_, err := c.pool.Exec(c.t.Context(), steppableClock)
	require.NoError(c.t, err)
	c.pool.Reset()
}

// step sets clocks ahead by this much, and checks that they show the wrong time.
func (c *chaos) step(by time.Duration, names ...string) {
	c.t.Helper()
	for _, name := range names {
		if name == postgresClock {
			_, err := c.pool.Exec(c.t.Context(), `UPDATE stepped.clock SET by = $1`, by)
			require.NoError(c.t, err)
			continue
		}
		c.clocks[name].step(by)
	}
	for _, name := range names {
		if name != postgresClock {
			require.Equal(c.t, by, c.member(name).wrong(c.t), "the clock of %s", name)
			continue
		}
		var shown time.Time
		require.NoError(c.t, c.pool.QueryRow(context.Background(), `SELECT clock_timestamp()`).Scan(&shown))
		require.Equal(c.t, by, time.Until(shown).Round(time.Minute))
	}
}

// waitForWork waits until an event that happens after this call is stored, and
// a job added after that event is completed.
func (c *chaos) waitForWork() {
	c.t.Helper()
	last := count(c.t, c.pool, `SELECT coalesce(max(id), 0) FROM river_job`)
	c.recover("a clock step")
	eventually.True(c.t, func() bool {
		done, err := tryCount(c.pool, fmt.Sprintf(`
			SELECT count(*) FROM river_job WHERE kind = 'process_posts' AND state = 'completed' AND id > %d`, last))
		return err == nil && done > 0
	}, 20*time.Millisecond, "no job is completed")
}

// silence stops the events and sets clocks ahead until the stream counts as
// quiet, with nothing unread. If the server later forgets more than
// WEIR_GAP_THRESHOLD, a gap must still be recorded. The threshold is short
// here, because it is the only way to tell a silence from a hole.
func (c *chaos) silence(names ...string) {
	c.t.Helper()
	c.consumersWith("WEIR_GAP_THRESHOLD=1s")
	defer c.consumersWith()
	c.recover("a new threshold")
	c.stop()
	last := c.drain()
	c.step(time.Hour, names...)
	eventually.True(c.t, func() bool {
		quiet, err := tryCount(c.pool, `SELECT count(*) FROM streams WHERE state = 'quiet'`)
		return err == nil && quiet > 0
	}, 20*time.Millisecond, "the stream does not become quiet") // takes two minutes if the step moves the lease to the other consumer
	c.step(0, names...)
	c.hole(last, c.refuse, c.accept)
	c.recover("a hole in silence")
}

// consumersWith restarts the consumers with additional environment variables.
func (c *chaos) consumersWith(more ...string) {
	c.t.Helper()
	c.more = more
	for _, name := range fleet()[:2] {
		c.terminate(name)
	}
}
