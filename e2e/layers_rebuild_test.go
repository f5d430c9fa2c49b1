package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// rebuilds destroys what was derived from the records: the texts for the search, the edges of the
// graph, and a view. It adds stale texts and edges of deleted records. The projection is rebuilt
// while changes happen, and the process is killed in the middle. Afterwards the texts of all
// records that did not change are as before. compare checks the edges, and views checks the views.
func (l *layered) rebuilds(changes []layersChange) {
	l.t.Helper()
	changed := map[string]bool{} // records and accounts
	for _, c := range changes {
		changed[c.uri] = true
	}
	before := l.untouched(changed)
	require.Greater(l.t, len(before), 50)
	for _, sql := range []string{
		`DELETE FROM record_texts`,
		`DELETE FROM record_refs`,
		`INSERT INTO record_texts (collection, did, rkey, text, words) SELECT collection, did, rkey, 'stale', 'stale' FROM ` + deletedRecord,
		`
			INSERT INTO record_refs (collection, did, rkey, path, kind, target, declared, read, dangling)
			SELECT collection, did, rkey, '/stale', 'at-uri', '', true, false, false FROM ` + deletedRecord,
		`DROP VIEW layers.expression`,
	} {
		done, err := l.pool.Exec(l.t.Context(), sql)
		require.NoError(l.t, err)
		require.True(l.t, strings.HasPrefix(sql, "DROP") || done.RowsAffected() > 0, sql)
	}

	require.Contains(l.t, succeed(l.t, l.env, "rebuild", "--projection", "lexicon", "--detach"), "rebuilds lexicon")
	happen(l.t, l.net, changes[:len(changes)/2])
	l.restart(killAt(2, "judgment: after its transaction"))
	l.process.dies(l.t)
	l.restart()
	happen(l.t, l.net, changes[len(changes)/2:])
	finishes(l.t, 20*time.Millisecond, func() (int, error) {
		return tryCount(l.pool, `SELECT count(*) FROM river_job WHERE kind IN ('run_projection', 'make_record_views') AND finalized_at IS NULL`)
	}, "the rebuild does not end: %s", tail(l.process.stderr.String(), 2000))
	l.read()
	require.Subset(l.t, l.untouched(changed), before) // records that were parked may have a text now
	require.Zero(l.t, count(l.t, l.pool, `
		SELECT (SELECT count(*) FROM record_texts WHERE text = 'stale') + (SELECT count(*) FROM record_refs WHERE path = '/stale')`))
}

// deletedRecord is a record that is not stored.
const deletedRecord = `(SELECT t.collection, t.did, t.rkey FROM tombstones AS t
	WHERE t.collection LIKE 'pub.layers.%' AND NOT EXISTS (SELECT FROM records_other AS r
	    WHERE (r.did, r.collection, r.rkey) = (t.did, t.collection, t.rkey)) ORDER BY t.did, t.rkey LIMIT 1) AS d`

// untouched returns the search texts of the records that did not change. It omits records of
// accounts that changed or were deleted before.
func (l *layered) untouched(changed map[string]bool) []string {
	l.t.Helper()
	return slices.DeleteFunc(texts(l.t, l.pool,
		`SELECT 'at://' || did || '/' || collection || '/' || rkey || ' ' || text || ' ' || words::text FROM record_texts AS t
		WHERE NOT EXISTS (SELECT FROM accounts AS a WHERE a.did = t.did AND a.status = 'deleted')`), func(line string) bool {
		did, collection, rkey := splitURI(line)
		return changed[did] || changed["at://"+did+"/"+collection+"/"+rkey]
	})
}

// splitURI splits the at-uri that a line begins with.
func splitURI(line string) (did, collection, rkey string) {
	uri, _, _ := strings.Cut(strings.TrimPrefix(line, "at://"), " ")
	parts := strings.SplitN(uri, "/", 3)
	return parts[0], parts[1], parts[2]
}

func shown(uri string, text *string) string {
	if text == nil {
		return uri + " has none"
	}
	return uri + " says " + *text
}

// views compares a view with the fold, and all views with the stored records.
func (l *layered) views() {
	l.t.Helper()
	fold := foldLayers(l.net.Log().Entries(), l.net.Calls("com.atproto.repo.getRecord"))
	var want, got []string
	for uri, e := range fold.records {
		if e.Collection == layersName+"expression.expression" && !fold.deleted[e.DID] {
			var record struct{ Text *string }
			require.NoError(l.t, json.Unmarshal(e.Record, &record))
			want = append(want, shown(uri, record.Text))
		}
	}
	rows, err := l.pool.Query(l.t.Context(), `SELECT uri, text FROM layers.expression`)
	require.NoError(l.t, err)
	var uri string
	var text *string
	_, err = pgx.ForEachRow(rows, []any{&uri, &text}, func() error {
		if did, _, _ := splitURI(uri); !fold.deleted[did] {
			got = append(got, shown(uri, text))
		}
		return nil
	})
	require.NoError(l.t, err)
	require.NotEmpty(l.t, want)
	require.ElementsMatch(l.t, want, got)
	views := texts(l.t, l.pool,
		`SELECT collection || ' ' || schema_name || '.' || view_name FROM record_views WHERE collection LIKE 'pub.layers.%'`)
	var viewed []string
	for _, line := range views {
		collection, view, _ := strings.Cut(line, " ")
		viewed = append(viewed, strings.TrimPrefix(collection, layersName))
		require.Zero(l.t,
			count(l.t, l.pool, `SELECT (SELECT count(*) FROM `+view+`) - (SELECT count(*) FROM records WHERE collection = '`+collection+`')`), line)
	}
	require.Subset(l.t, viewed, l.plan.kinds) // a lexicon without records has a view too
}
