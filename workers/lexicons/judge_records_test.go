package lexicons

import (
	"context"
	"fmt"
	"github.com/weir-social/weir/internal/testing/workertest"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/lexicon/rules"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

const (
	expressions = "example.weir.expression.expression"
	memberships = "example.weir.corpus.membership"
	corpora     = "example.weir.corpus.corpus"
	typeDefs    = "example.weir.ontology.typeDef"
	ontologies  = "example.weir.ontology.ontology"
	changelogs  = "example.weir.changelog.entry"
	templates   = "example.weir.resource.template"
	fillings    = "example.weir.resource.filling"
	layersOf    = "example.weir.annotation.annotationLayer"
)

// bench judges records of example.weir in its own database, with all workers. The accounts' server
// has the records that a test gives it.
type bench struct {
	author
	projections schema.Projections
	server      *recordServer
	client      *workers.Client
	settings    *settings
	bundle      workers.Bundle // of the client
}

// recordServer is the directory of accounts and the server of all of them.
type recordServer struct {
	*httptest.Server
	mu      sync.Mutex        // guards the fields below
	records map[string]string // by at-uri
	proofs  map[string][]byte // CARs, by at-uri
	key     string            // of all accounts, as in a DID document
	asked   map[string]int    // number of requests by path and query
	outside []string          // names that jobs looked up, and other hosts that they connected to
}

func newRecordServer(t testing.TB) *recordServer {
	s := &recordServer{records: map[string]string{}, proofs: map[string][]byte{}, asked: map[string]int{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *recordServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[r.URL.RequestURI()]++
	w.Header().Set("Content-Type", "application/json")
	q := r.URL.Query()
	if did, ok := strings.CutPrefix(r.URL.Path, "/did:"); ok {
		fmt.Fprintf(w, `{"id":"did:%s","service":[{"id":"#atproto_pds","type":"AtprotoPersonalDataServer","serviceEndpoint":"%s"}],
			"verificationMethod":[{"id":"#atproto","type":"Multikey","publicKeyMultibase":%q}]}`, did, s.URL, s.key)
		return
	}
	if r.URL.Path == "/xrpc/com.atproto.sync.getRecord" {
		w.Write(s.proofs["at://"+q.Get("did")+"/"+q.Get("collection")+"/"+q.Get("rkey")]) // the client may leave
		return
	}
	uri := "at://" + q.Get("repo") + "/" + q.Get("collection") + "/" + q.Get("rkey")
	record, ok := s.records[uri]
	if !ok {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error":"RecordNotFound","message":"none"}`)
		return
	}
	fmt.Fprintf(w, `{"uri":%q,"cid":"bafyreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku","value":%s}`, uri, record)
}

// watched returns a context for the jobs. It records the host of every HTTP request before it is
// dialled, and every name that is looked up, except the database's.
func (s *recordServer) watched(ctx context.Context, database string) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GetConn: s.reached, DNSStart: func(name httptrace.DNSStartInfo) {
		if name.Host != database {
			s.reached(name.Host)
		}
	}})
}

// reached records a host, unless it is the server itself.
func (s *recordServer) reached(host string) {
	if host != s.Listener.Addr().String() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.outside = append(s.outside, host)
	}
}

// noNames records which name was looked up, and returns no DNS records.
func (s *recordServer) noNames(_ context.Context, name string) ([]string, error) {
	s.reached(name)
	return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
}

func (s *recordServer) has(uri, record string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records[uri] = record
}

// askedFor returns how often the server was asked for a record.
func (s *recordServer) askedFor(uri string) int {
	parts := strings.SplitN(strings.TrimPrefix(uri, "at://"), "/", 3)
	q := url.Values{"repo": parts[:1], "collection": parts[1:2], "rkey": parts[2:]}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked["/xrpc/com.atproto.repo.getRecord?"+q.Encode()]
}

// requests returns every request to the server, and every other host that a job tried to
// reach.
func (s *recordServer) requests() (asked map[string]int, outside []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.asked), slices.Clone(s.outside)
}

func newBench(t testing.TB, change func(*settings)) *bench {
	t.Helper()
	pool := schematest.New(t)
	b := &bench{projections: schema.NewProjections(Projection([]string{"example.weir.*"})), server: newRecordServer(t)}
	_, err := b.projections.Register(t.Context(), pool)
	require.NoError(t, err)
	lease, ok, err := schema.TakeLease(t.Context(), pool, "s", "wire", "me", time.Hour)
	require.NoError(t, err)
	require.True(t, ok)
	b.author = author{t, pool, lease}
	api, err := bluesky.New(bluesky.Config{AppView: b.server.URL, Directory: b.server.URL, Retries: []time.Duration{}})
	require.NoError(t, err)
	b.settings = &settings{Config: workers.Config{Shared: workers.Shared{Pool: pool, Projections: b.projections,
		Logger: slog.New(slog.DiscardHandler), Bluesky: api},
		ID: t.Name(), Processing: workers.Processing{Process: 4,
			Queues: []string{jobs.QueueProcess, jobs.QueueNetwork, jobs.QueueMaintenance}}},
		Lexicons: Config{
			Folder: os.DirFS("../../internal/lexicon/testdata/lexicons"), Rules: rules.Rules{rules.Layers("example.weir")}, TXT: b.server.noNames,
		}}
	if change != nil {
		change(b.settings)
	}
	b.client = b.settings.start(b.server.watched(context.Background(), pool.Config().ConnConfig.Host), t, &b.bundle)
	t.Cleanup(func() {
		_, outside := b.server.requests()
		require.Empty(t, outside, "jobs tried to reach other hosts")
	})
	schedules(t, b.pool)
	return b
}

// storeLexicons stores the schemas again, as at the next start.
func (b *bench) storeLexicons() error {
	return b.settings.Lexicons.store(b.t.Context(), b.pool, b.client.Client)
}

// write stores a record like the consumer.
func (b *bench) write(key schema.Key, rev, fields string) {
	b.t.Helper()
	require.NoError(b.t, b.commit(b.projections, schema.Batch{Writes: []schema.Write{written(key, rev, fields)}}))
}

func written(key schema.Key, rev, fields string) schema.Write {
	return schema.Write{Key: key, Rev: rev, CID: "cid-" + rev, CreatedAt: time.Unix(100, 0),
		Record: fmt.Appendf(nil, `{"$type":%q,"createdAt":"2026-01-02T03:04:05Z"%s}`, key.Collection, fields)}
}

func (b *bench) delete(key schema.Key, rev string) {
	b.t.Helper()
	require.NoError(b.t, b.commit(b.projections, schema.Batch{Deletions: []schema.Deletion{{Key: key, Rev: rev, At: time.Now()}}}))
}

// states selects the verdict on each record, in a readable form.
const states = `
SELECT v.did || ' ' || right(v.rkey, 4) || ' ' || v.verdict || ' ' || v.state || CASE WHEN v.dangling THEN ' dangling' ELSE '' END
       || coalesce(' ' || (SELECT string_agg(w ->> 'rule', ',' ORDER BY w ->> 'rule') FROM jsonb_array_elements(v.warnings) AS w), '')
       || coalesce(' refs:' || (SELECT string_agg(r.path || CASE WHEN r.dangling THEN '!' ELSE '' END, ',' ORDER BY r.path)
           FROM record_refs AS r WHERE (r.did, r.collection, r.rkey) = (v.did, v.collection, v.rkey)), '')
       || coalesce(' letter:' || (SELECT string_agg(l.stage, ',' ORDER BY l.stage) FROM dead_letters AS l
           WHERE (l.did, l.collection, l.rkey) = (v.did, v.collection, v.rkey) AND l.state = 'open'), '')
FROM verdicts AS v ORDER BY 1`

// settled waits until no record waits and no job is left in the queues that are processed. It does
// not wait for the times of the checks: once nothing else is left to do, it checks the waiting
// records at once.
func (b *bench) settled() {
	b.t.Helper()
	eventually.True(b.t, func() bool {
		var left, ready, parked int
		require.NoError(b.t, b.pool.QueryRow(b.t.Context(), `
SELECT count(*), count(*) FILTER (WHERE state IN ('available', 'running')), (SELECT count(*) FROM parked WHERE state <> 'missing')
FROM river_job WHERE finalized_at IS NULL
    AND kind IN ('judge_records', 'judge_dependents', 'judge_account', 'judge_outdated', 'fetch_record', 'retry_dead_letters')
  AND (cardinality($1::text[]) = 0 OR queue = ANY ($1))`, append([]string{}, b.settings.Queues...)).Scan(&left, &ready, &parked))
		if left == 0 && parked == 0 {
			return true
		}
		if ready == 0 {
			execute(b.t, b.pool, `
UPDATE parked
SET retry_at = now()
WHERE ctid = ANY (ARRAY(SELECT ctid FROM parked WHERE state = 'waiting' AND retry_at > now() FOR UPDATE SKIP LOCKED))`)
			_, err := b.client.Insert(b.t.Context(), CheckParkedArgs{}, nil)
			require.NoError(b.t, err)
		}
		return false
	}, 50*time.Millisecond)
}

func tidOf(n int) string { return fmt.Sprintf("3kabcdefg22%c%c", 'a'+n/26, 'a'+n%26) }

// A change is a step in the history of an account's records, whose final state an independent fold
// knows.
type change struct {
	key    schema.Key
	rev    string
	fields string // the written fields; empty for a deletion
}

// histories returns changes of an account, and the states that every order of them must result in.
func histories(did string) (all []change, want []string) {
	n := 0
	add := func(collection, fields string) schema.Key {
		n++
		key := schema.Key{Collection: collection, DID: did, Rkey: tidOf(n)}
		all = append(all, change{key, tidOf(1), fields})
		return key
	}
	expect := func(key schema.Key, state string) { want = append(want, did+" "+key.Rkey[9:]+" "+state) }
	never := func(collection string) schema.Key {
		n++
		return schema.Key{Collection: collection, DID: did, Rkey: tidOf(n)}
	}

	text := add(expressions, `,"id":"x","kind":"document","languages":["de-CH"],"text":"a long text"`)
	corpus := add(corpora, `,"name":"c"`)
	expect(text, "valid projected")
	expect(corpus, "valid projected")
	member := func(c, e schema.Key) string {
		return fmt.Sprintf(`,"corpusRef":%q,"expressionRef":%q`, c.URI(), e.URI())
	}
	expect(add(memberships, member(corpus, text)), "valid projected refs:/corpusRef,/expressionRef")

	// A chain in which each record waits for the next.
	ontology := add(ontologies, `,"name":"o"`)
	kind := add(typeDefs, fmt.Sprintf(`,"ontologyRef":%q,"name":"t","typeKind":"entity-type"`, ontology.URI()))
	entry := func(subject schema.Key) string {
		return fmt.Sprintf(`,"subject":%q,"subjectCollection":%q,"summary":"s","sections":[]`, subject.URI(), subject.Collection)
	}
	expect(ontology, "valid projected")
	expect(kind, "valid projected refs:/ontologyRef")
	expect(add(changelogs, entry(kind)), "valid projected refs:/subject")

	// A cycle of two records.
	first, second := never(changelogs), never(changelogs)
	all = append(all, change{first, tidOf(1), entry(second)}, change{second, tidOf(1), entry(first)})
	expect(first, "valid projected refs:/subject")
	expect(second, "valid projected refs:/subject")

	// A record that was deleted, one that never existed, and one that is stored but invalid.
	deleted := add(corpora, `,"name":"d"`)
	all = append(all, change{deleted, tidOf(2), ""})
	expect(add(memberships, member(deleted, text)), "valid projected dangling refs:/corpusRef!,/expressionRef")
	missing := never(corpora)
	expect(add(memberships, member(missing, text)), "valid missing letter:reference")
	expect(add(memberships, member(deleted, never(expressions))), "valid missing letter:reference")
	broken := add(templates, `,"name":"t"`)
	expect(broken, "invalid refused letter:lexicon")
	expect(add(fillings, fmt.Sprintf(`,"templateRef":%q,"slotFillings":[]`, broken.URI())), "valid projected refs:/templateRef")

	// An optional reference to a deleted record, and a hard rule.
	parent := add(expressions, `,"id":"p","kind":"document"`)
	all = append(all, change{parent, tidOf(3), ""})
	expect(add(expressions, fmt.Sprintf(`,"id":"x","kind":"word","parentRef":%q`, parent.URI())), "valid projected refs:/parentRef!")
	expect(add(memberships, member(text, text)), "valid refused letter:rules")

	// An edit that removes the text under a span.
	edited := add(expressions, `,"id":"e","kind":"document","text":"long enough"`)
	all = append(all, change{edited, tidOf(4), `,"id":"e","kind":"document","text":"short"`})
	expect(edited, "valid projected")
	expect(add(layersOf, fmt.Sprintf(`,"expression":%q,"kind":"span","annotations":[{"uuid":{"value":"u"},`+
		`"anchor":{"textSpan":{"byteStart":2,"byteEnd":9}}}]`, edited.URI())),
		"valid projected span_bounds refs:/expression")
	slices.Sort(want)
	return all, want
}

// TestOrderOfArrivalChangesNothing shows that each record ends as an independent fold says,
// whatever the order in which records, edits and deletions arrive, alone or together.
func TestOrderOfArrivalChangesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	const orders, parts = 6, 5
	var want []string
	var left [orders][]change
	random := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano()))) // not for security
	most := 0
	for i := range orders {
		all, expected := histories(fmt.Sprintf("did:plc:order%02d", i))
		want = append(want, expected...)
		switch i {
		case 0: // as written
		case 1:
			slices.Reverse(all)
		default:
			random.Shuffle(len(all), func(a, b int) { all[a], all[b] = all[b], all[a] })
		}
		left[i], most = all, max(most, len(all))
	}
	for range parts { // when a part arrives, the parts before it have been judged
		for i, all := range left {
			n := min(1+most/parts, len(all))
			b.changes(all[:n])
			left[i] = all[n:]
		}
		becomes(t, b.pool, []string{"0"}, `
SELECT count(*)::text
FROM river_job
WHERE kind IN ('judge_records', 'judge_dependents') AND finalized_at IS NULL`)
	}
	b.settled()
	slices.Sort(want)
	require.Equal(t, want, strs(t, b.pool, states))
	require.Zero(t, count(t, b.pool, `
SELECT count(*)
FROM verdicts AS v
WHERE NOT EXISTS (SELECT FROM records AS r WHERE (r.collection, r.did, r.rkey, r.cid) = (v.collection, v.did, v.rkey, v.cid))`))
	require.Equal(t, orders, count(t, b.pool, `SELECT count(*) FROM record_texts WHERE words @@ $$long & '=language=de'$$::tsquery`))
	require.Equal(t, []string{"A:x\na long text"}, strs(t, b.pool, `
SELECT DISTINCT 'A:' || text
FROM record_texts
WHERE words @@ 'x:A & long:D & text:D & !document'::tsquery`), "the identifier must be indexed as the record's name")
}

// changes commits changes in a batch, like the stream: at most one of each record.
func (b *bench) changes(all []change) {
	b.t.Helper()
	for _, c := range all {
		if c.fields == "" {
			b.delete(c.key, c.rev)
		} else {
			b.write(c.key, c.rev, c.fields)
		}
	}
}

// TestRefusalsAreCounted shows that records that fail validation are counted by stage and
// collection, once each.
func TestRefusalsAreCounted(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	b := newBench(t, func(c *settings) {
		c.Registerer = registry
		c.Collections = collection.Of(collection.Entry{Pattern: schema.PostCollection}, collection.Entry{Pattern: "example.weir.*"})
	})
	counted := func() map[string]float64 {
		return workertest.Samples(t, registry, "weir_projector_dead_lettered_total",
			func(m *dto.Metric) float64 { return m.GetCounter().GetValue() })
	}
	before := counted()
	require.Contains(t, before, "invalid example.weir.* lexicon lexicon", "the first refusal must be an increase")
	key := schema.Key{Collection: expressions, DID: "did:plc:a", Rkey: "3mptdaeh36222"}
	b.write(key, "3mptdaeh36222", "")
	eventually.True(t, func() bool {
		n, err := schema.CountDeadLetters(t.Context(), b.pool)
		return err == nil && n[4] == schema.StageCount{Stage: schema.StageLexicon, Count: 1}
	}, 10*time.Millisecond)
	before["invalid example.weir.* lexicon lexicon"]++
	require.Equal(t, before, counted())
}
