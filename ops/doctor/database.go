package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/schema"
)

// Database is what is to be looked at.
type Database struct {
	Open   func(context.Context) (*pgxpool.Pool, error) // its error is said as it is
	Needs  Needs
	Stream string        // whose lease is looked at
	Pooled bool          // WEIR_POOLER=transaction: nothing is asked of a session
	Within time.Duration // for the connection, and again for each question
}

// DatabaseCheck connects, and when that succeeds makes every check that needs the
// database: so a database that is gone is said once.
func DatabaseCheck(d Database) Check {
	return Check{"database", func(ctx context.Context) []Finding {
		started := time.Now()
		opening, cancel := context.WithTimeout(ctx, d.Within)
		defer cancel()
		pool, err := d.Open(opening)
		if err != nil {
			return []Finding{Failed("database", "check DATABASE_URL, and that Postgres runs and lets this machine in", err)}
		}
		found := []Finding{ok("database", "answered in %s", time.Since(started).Round(time.Millisecond))}
		return append(found, Run(ctx, d.Within,
			Check{"migrations", d.with(pool, migrations)},
			Check{"settings", d.with(pool, d.settings)},
			Check{"partitions", d.with(pool, d.partitions)},
			Check{"collections", d.with(pool, d.collections)},
			Check{"lease", d.with(pool, d.lease)},
			Check{"old transactions", d.with(pool, snapshots)},
			Check{"replication slots", d.with(pool, slots)},
			Check{"indexes", d.with(pool, indexes)},
			Check{"pooler", d.with(pool, d.pooler)},
		)...)
	}}
}

// with makes a check of a question to the database. A question that cannot be
// asked has failed.
func (d Database) with(pool *pgxpool.Pool, ask func(context.Context, *pgxpool.Pool) ([]Finding, error)) func(context.Context) []Finding {
	return func(ctx context.Context) []Finding {
		found, err := ask(ctx, pool)
		if err != nil {
			found = append(found, Failed("database", "see the log of Postgres", err))
		}
		return found
	}
}

func migrations(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	err := schema.Check(ctx, pool)
	if tooNew := new(schema.TooNewError); errors.As(err, &tooNew) {
		return []Finding{Failed("migrations", "run the newer binary", err)}, nil
	}
	if unreleased := new(schema.UnreleasedError); errors.As(err, &unreleased) {
		return []Finding{Failed("migrations", "move the watches to a new database: docs/operations.md, Starting anew", err)}, nil
	}
	if err != nil {
		return []Finding{Failed("migrations", "weir migrate", err)}, nil
	}
	return []Finding{ok("migrations", "the database has this binary's schema")}, nil
}

// settings looks at the server: its version, its clock, its settings.
func (d Database) settings(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	defer conn.Release()
	before := time.Now()
	server, err := schema.ReadServer(ctx, conn)
	if err != nil {
		return nil, err
	}
	took := time.Since(before)
	settings, err := schema.Settings(ctx, conn, settingNames())
	if err != nil {
		return nil, err
	}
	rights, err := schema.ReadRights(ctx, conn)
	if err != nil {
		return nil, err
	}
	needs, host := d.Needs, pool.Config().ConnConfig.Host
	if between(conn.Conn(), server) {
		host, needs.Pooled = "", d.Pooled // it is the pooler's host
	}
	found := append(judgeServer(server), judgeRole(server, rights), clock("clock of Postgres", server.Now.Sub(before.Add(took/2)), took/2))
	found = append(found, judgeSettings(needs, server, settings)...)
	return append(found, disk(needs, server, settings, host)), nil
}

// between answers whether something stands between Weir and Postgres: the session
// it was told of is not the one that answered.
func between(conn *pgx.Conn, server schema.Server) bool {
	return int64(conn.PgConn().PID()) != server.Backend
}

// judgeRole compares what this role may do with what Weir does.
func judgeRole(s schema.Server, r schema.Rights) Finding {
	const grant = "deploy/roles.sql, as a superuser, grants what weir_app needs"
	missing := r.Missing
	if len(missing) > 4 {
		missing = append(missing[:4:4], fmt.Sprintf("and %d more", len(r.Missing)-4))
	}
	switch {
	case s.Standby:
		return fail("role", "point DATABASE_URL at the primary", "this server is a standby: nothing can be written")
	case r.Schema == "":
		return fail("role", grant, "%s may use no schema of its search_path", r.Role)
	case !r.Migrated && !r.Create:
		return fail("role", "run weir migrate as the role that shall own the tables", "%s may not make tables", r.Role)
	case !r.Migrated:
		return ok("role", "%s may make tables", r.Role)
	case len(missing) > 0:
		return fail("role", grant, "%s lacks rights: %s", r.Role, strings.Join(missing, "; "))
	case !r.Partitions:
		return fail("role", "weir migrate, as the owner of the tables, who must have CREATE on the schema", "%s may not have partitions made: tomorrow's posts have none", r.Role)
	case !r.Owns:
		return ok("role", "%s may do what Weir does; migrations and indexes are left to %s", r.Role, r.Owner)
	}
	return ok("role", "%s may do what Weir does, and owns the tables", r.Role)
}

func judgeServer(s schema.Server) []Finding {
	var found []Finding
	switch major := s.Version / 10_000; {
	case major < 15:
		found = append(found, fail("version of Postgres", "upgrade Postgres to 15 or newer", "%d", major))
	case major > 18:
		found = append(found, warn("version of Postgres", "look for a newer Weir", "%d: this binary was tried with 15 to 18", major))
	default:
		found = append(found, ok("version of Postgres", "%d.%d", major, s.Version%10_000))
	}
	if s.Encoding != "UTF8" {
		found = append(found, fail("encoding", "make a database with ENCODING 'UTF8' TEMPLATE template0, and migrate it", "%s cannot hold what people write", s.Encoding))
	} else {
		found = append(found, ok("encoding", "UTF8"))
	}
	if s.Collation != s.CollationIs && s.Collation != "" {
		found = append(found, warn("collation", fmt.Sprintf("REINDEX DATABASE %q; ALTER DATABASE %q REFRESH COLLATION VERSION", s.Database, s.Database),
			"the database was made with version %s of its collation, the machine has %s: its indexes may be out of order", s.Collation, orNone(s.CollationIs)))
	} else {
		found = append(found, ok("collation", "the version is the one the database was made with"))
	}
	const soon, late = 500_000_000, 1_500_000_000
	switch {
	case s.XIDAge > late:
		found = append(found, fail("transaction ids", "VACUUM (FREEZE) the database now, and see what keeps autovacuum from it", "%d since the last freeze: at 2 billion the server stops", s.XIDAge))
	case s.XIDAge > soon:
		found = append(found, warn("transaction ids", "see whether autovacuum runs, and whether an old transaction or slot holds it back", "%d since the last freeze", s.XIDAge))
	default:
		found = append(found, ok("transaction ids", "%d since the last freeze", s.XIDAge))
	}
	return found
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// disk says how large the database is, and how much room it has where that can be
// known: on this very machine.
func disk(n Needs, server schema.Server, settings []schema.Setting, host string) Finding {
	says := fmt.Sprintf("the database has %s", size(server.Bytes))
	if server.Bytes > n.Bytes {
		return warn("disk", "WEIR_RETENTION, WEIR_COLLECTIONS, WEIR_DATABASE_LIMIT", "%s, more than WEIR_DATABASE_LIMIT", says)
	}
	free, known := room(settings, host)
	switch {
	case !known:
		return ok("disk", "%s; how much is free cannot be seen from here", says)
	case free < giga || free < server.Bytes/4:
		return warn("disk", "make room: when the disk is full Postgres stops", "%s, and %s are free", says, size(free))
	}
	return ok("disk", "%s, and %s are free", says, size(free))
}

// room is what is free where the server keeps its files.
func room(settings []schema.Setting, host string) (free int64, known bool) {
	ip, err := netip.ParseAddr(host)
	if local := strings.HasPrefix(host, "/") || host == "localhost" || err == nil && ip.IsLoopback(); !local {
		return 0, false
	}
	for _, s := range settings {
		if s.Name == "data_directory" {
			var st syscall.Statfs_t
			if err := syscall.Statfs(s.Value, &st); err != nil {
				return 0, false // in a container, or not ours to see
			}
			return int64(st.Bavail) * int64(st.Bsize), true
		}
	}
	return 0, false
}

// lease says who reads the stream; nothing before there can be one.
func (d Database) lease(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	if schema.Check(ctx, pool) != nil {
		return nil, nil // the migrations are said
	}
	streams, err := schema.StreamStatuses(ctx, pool)
	if err != nil {
		return nil, err
	}
	const do = "weir serve, or weir consume"
	for _, s := range streams {
		if s.Name != d.Stream {
			continue
		}
		found := []Finding{ok("lease", "%s holds the lease of stream %s, epoch %d; %s", s.Owner, s.Name, s.Epoch, s.Current())}
		switch {
		case !s.Leased && s.Owner != "":
			found[0] = warn("lease", do+"; a consumer that is only paused finds its lease gone and stops", "%s held the lease of stream %s and has fallen silent", s.Owner, s.Name)
		case !s.Leased:
			found[0] = warn("lease", do, "nobody reads stream %s", s.Name)
		}
		if s.LastEvent != nil { // an event is as old as it is; only one from the future tells of a clock
			found = append(found, clock("clock of the newest event", max(time.Until(*s.LastEvent), 0), 0))
		}
		return found, nil
	}
	return []Finding{warn("lease", do, "stream %s was never read", d.Stream)}, nil
}

// oldSnapshot is how long a transaction may be open.
const oldSnapshot = 10 * time.Minute

func snapshots(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	now := time.Now()
	old, err := schema.OldSnapshots(ctx, pool, now.Add(-oldSnapshot))
	if err != nil {
		return nil, err
	}
	everybodys, err := schema.SeesSessions(ctx, pool)
	if err != nil {
		return nil, err
	}
	switch {
	case len(old) > 0:
	case everybodys:
		return []Finding{ok("old transactions", "none is older than %s", oldSnapshot)}, nil
	default:
		return []Finding{ok("old transactions", "none of this role's is older than %s; those of others are hidden from it, without pg_read_all_stats", oldSnapshot)}, nil
	}
	var found []Finding
	for _, s := range old {
		found = append(found, warn("old transactions", s.What, "one has been open for %s: nothing deleted since can be vacuumed", now.Sub(s.Since).Round(time.Second)))
	}
	return found, nil
}

func slots(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	all, err := schema.Slots(ctx, pool)
	if err != nil {
		return nil, err
	}
	return judgeSlots(all), nil
}

func judgeSlots(all []schema.Slot) (found []Finding) {
	const tooMuch = 5 * giga
	for _, s := range all {
		do := fmt.Sprintf("have its reader catch up, or SELECT pg_drop_replication_slot('%s'); max_slot_wal_keep_size bounds what a slot may keep", s.Name)
		switch {
		case s.Lost:
			found = append(found, warn("replication slots", do, "%s is lost: its reader has to start anew", s.Name))
		case s.Bytes > tooMuch:
			found = append(found, fail("replication slots", do, "%s keeps %s of log: the disk fills", s.Name, size(s.Bytes)))
		case !s.Active:
			found = append(found, warn("replication slots", do, "nobody reads %s, and it keeps %s of log", s.Name, size(s.Bytes)))
		}
	}
	if len(found) == 0 {
		found = []Finding{ok("replication slots", "none holds back the log")}
	}
	return found
}

func indexes(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	broken, err := schema.InvalidIndexes(ctx, pool)
	if err != nil || len(broken) == 0 {
		return []Finding{ok("indexes", "all are valid")}, err
	}
	var found []Finding
	for _, name := range broken {
		found = append(found, warn("indexes", "REINDEX INDEX CONCURRENTLY "+name+", or DROP it where it ends in _ccnew or _ccold", "%s is invalid: it answers nothing and costs every write", name))
	}
	return found, nil
}

// notifyWithin is how long a notification may take.
const notifyWithin = 3 * time.Second

// pooler looks whether something stands between Weir and Postgres, and whether
// WEIR_POOLER says what it is. Without the variable Weir listens and prepares in
// sessions, and needs to keep its own.
func (d Database) pooler(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	conn, err := pgx.ConnectConfig(ctx, pool.Config().ConnConfig)
	if err != nil {
		return nil, fmt.Errorf("open a second connection: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it is over
	server, err := schema.ReadServer(ctx, conn)
	if err != nil {
		return nil, err
	}
	there := between(conn, server)
	switch {
	case d.Pooled && there:
		return []Finding{ok("pooler", "there is one, and WEIR_POOLER=transaction asks nothing of its sessions")}, nil
	case d.Pooled:
		return []Finding{ok("pooler", "none, though WEIR_POOLER=transaction: Weir works, and looks every second for what Postgres would tell it at once")}, nil
	}
	waiting, cancel := context.WithTimeout(ctx, notifyWithin)
	defer cancel()
	err = schema.Notified(waiting, conn, pool, "weir_doctor_"+strings.ToLower(rand.Text()))
	switch {
	case err != nil && there:
		return []Finding{fail("pooler", "set WEIR_POOLER=transaction, or lead DATABASE_URL to Postgres itself or to a pooler in session mode",
			"there is one that keeps no sessions: what Weir prepares and listens to there is lost (%s)", err)}, nil
	case err != nil:
		return []Finding{Failed("pooler", "see the log of Postgres: Weir listens for new jobs and follows", err)}, nil
	case there:
		return []Finding{ok("pooler", "there is one that keeps sessions: notifications arrive")}, nil
	}
	return []Finding{ok("pooler", "none, and notifications arrive")}, nil
}
