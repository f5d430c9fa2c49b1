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

// Database configures the checks of the database.
type Database struct {
	Open  func(context.Context) (*pgxpool.Pool, error) // its error is reported unchanged
	Needs Needs
	// Projections are those of this program.
	Projections schema.Projections
	Migrated    func(context.Context, *pgxpool.Pool) error // returns nil if the database has this binary's schema
	Stream      string                                     // the stream whose lease is checked
	Pooled      bool                                       // WEIR_POOLER=transaction: Weir keeps no state in sessions
	Within      time.Duration                              // limit of the connection, and of each check
}

// DatabaseCheck connects and, if that succeeds, runs every check that needs the
// database. A database that cannot be reached is reported once.
func DatabaseCheck(d Database) Check {
	return Check{"database", func(ctx context.Context) []Finding {
		started := time.Now()
		opening, cancel := context.WithTimeout(ctx, d.Within)
		defer cancel()
		pool, err := d.Open(opening)
		if err != nil {
			return []Finding{Failed("database", "check DATABASE_URL, and that Postgres runs and accepts connections from this machine", err)}
		}
		found := []Finding{ok("database", "connected in %s", time.Since(started).Round(time.Millisecond))}
		return append(found, Run(ctx, d.Within,
			Check{"migrations", d.with(pool, d.migrations)},
			Check{"settings", d.with(pool, d.settings)},
			Check{"partitions", d.with(pool, d.partitions)},
			Check{"collections", d.with(pool, d.collections)},
			Check{"projections", d.with(pool, d.projections)},
			Check{"lease", d.with(pool, d.lease)},
			Check{"old transactions", d.with(pool, snapshots)},
			Check{"replication slots", d.with(pool, slots)},
			Check{"indexes", d.with(pool, indexes)},
			Check{"pooler", d.with(pool, d.pooler)},
		)...)
	}}
}

// with turns a function that reads the database into a check. An error becomes a
// finding.
func (d Database) with(pool *pgxpool.Pool, check func(context.Context, *pgxpool.Pool) ([]Finding, error)) func(context.Context) []Finding {
	return func(ctx context.Context) []Finding {
		found, err := check(ctx, pool)
		if err != nil {
			found = append(found, Failed("database", "see the Postgres log", err))
		}
		return found
	}
}

func (d Database) migrations(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	err := d.Migrated(ctx, pool)
	if tooNew := new(schema.TooNewError); errors.As(err, &tooNew) {
		return []Finding{Failed("migrations", "run the newer binary", err)}, nil
	}
	if unreleased := new(schema.UnreleasedError); errors.As(err, &unreleased) {
		return []Finding{Failed("migrations", "move the watches to a new database: docs/operations.md, Starting anew", err)}, nil
	}
	if lacking := new(schema.MissingPartError); errors.As(err, &lacking) {
		return []Finding{Failed("migrations", "run a binary that has the feature "+lacking.Part, err)}, nil
	}
	if err != nil {
		return []Finding{Failed("migrations", "weir migrate", err)}, nil
	}
	return []Finding{ok("migrations", "the database has this binary's schema")}, nil
}

// projections checks that this program has every registered projection: without one
// it does not start.
func (d Database) projections(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	err := d.Projections.Check(ctx, pool)
	outdated, is := errors.AsType[*schema.OutdatedError](err)
	switch {
	case is && outdated.Missing:
		return []Finding{Failed("projections", "run the program that has it, or `weir projection remove "+outdated.Name+"`", err)}, nil
	case is:
		return []Finding{ok("projections", "this program registers its projections at its next start")}, nil
	case err != nil:
		return nil, err
	}
	return []Finding{ok("projections", "all projections of this program are registered")}, nil
}

// settings checks the server's version, clock, settings and disk, and this role.
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
	if behindPooler(conn.Conn(), server) {
		host, needs.Pooled = "", d.Pooled // the host is the pooler's
	}
	found := append(checkServer(server), checkRole(server, rights), clock("clock of Postgres", server.Now.Sub(before.Add(took/2)), took/2))
	found = append(found, checkSettings(needs, server, settings)...)
	return append(found, disk(needs, server, settings, host)), nil
}

// behindPooler reports whether a pooler is between Weir and Postgres: then the
// session ID from the handshake differs from that of the session that runs the
// queries.
func behindPooler(conn *pgx.Conn, server schema.Server) bool {
	return int64(conn.PgConn().PID()) != server.Backend
}

// checkRole checks that this role has the privileges that Weir needs.
func checkRole(s schema.Server, r schema.Rights) Finding {
	const grant = "run deploy/roles.sql as a superuser: it grants the privileges of weir_app"
	missing := r.Missing
	if len(missing) > 4 {
		missing = append(missing[:4:4], fmt.Sprintf("and %d more", len(r.Missing)-4))
	}
	switch {
	case s.Standby:
		return fail("role", "point DATABASE_URL at the primary", "this server is a read-only standby")
	case r.Schema == "":
		return fail("role", grant, "%s cannot use any schema in its search_path", r.Role)
	case !r.Migrated && !r.Create:
		return fail("role", "run weir migrate as the role that will own the tables", "%s cannot create tables", r.Role)
	case !r.Migrated:
		return ok("role", "%s can create tables", r.Role)
	case len(missing) > 0:
		return fail("role", grant, "%s lacks privileges: %s", r.Role, strings.Join(missing, "; "))
	case !r.Partitions:
		return fail("role", "run weir migrate as the owner of the tables, which needs CREATE on the schema",
			"%s cannot create partitions: tomorrow's posts will have none", r.Role)
	case !r.Owns:
		return ok("role", "%s has every privilege that Weir needs; migrations and indexes need %s", r.Role, r.Owner)
	}
	return ok("role", "%s has every privilege that Weir needs, and owns the tables", r.Role)
}

func checkServer(s schema.Server) []Finding {
	var found []Finding
	switch major := s.Version / 10_000; {
	case major < 15:
		found = append(found, fail("version of Postgres", "upgrade Postgres to 15 or newer", "%d", major))
	case major > 18:
		found = append(found, warn("version of Postgres", "use a newer version of Weir", "%d: this binary was tested with 15 to 18", major))
	default:
		found = append(found, ok("version of Postgres", "%d.%d", major, s.Version%10_000))
	}
	if s.Encoding != "UTF8" {
		found = append(found, fail("encoding", "create a database with ENCODING 'UTF8' TEMPLATE template0, and migrate it",
			"%s cannot store every character", s.Encoding))
	} else {
		found = append(found, ok("encoding", "UTF8"))
	}
	if s.Collation != s.CollationIs && s.Collation != "" {
		found = append(found,
			warn("collation", fmt.Sprintf("REINDEX DATABASE %q; ALTER DATABASE %q REFRESH COLLATION VERSION", s.Database, s.Database),
				"the database was created with version %s of its collation, but the machine has %s: its indexes may be out of order", s.Collation,
				orNone(s.CollationIs)))
	} else {
		found = append(found, ok("collation", "the version has not changed since the database was created"))
	}
	const soon, late = 500_000_000, 1_500_000_000
	switch {
	case s.XIDAge > late:
		found = append(found, fail("transaction ids", "VACUUM (FREEZE) the database now, and find out what blocks autovacuum",
			"%d since the last freeze: the server stops at 2 billion", s.XIDAge))
	case s.XIDAge > soon:
		found = append(found, warn("transaction ids", "check that autovacuum runs, and that no old transaction or slot holds it back",
			"%d since the last freeze", s.XIDAge))
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

// disk checks the size of the database and, if the server runs on this machine, the
// free space on its disk.
func disk(n Needs, server schema.Server, settings []schema.Setting, host string) Finding {
	says := fmt.Sprintf("the database uses %s", size(server.Bytes))
	if server.Bytes > n.Bytes {
		return warn("disk", "WEIR_RETENTION, WEIR_COLLECTIONS, WEIR_DATABASE_LIMIT", "%s, more than WEIR_DATABASE_LIMIT", says)
	}
	free, known := freeSpace(settings, host)
	switch {
	case !known:
		return ok("disk", "%s; the free space is not visible from this machine", says)
	case free < giga || free < server.Bytes/4:
		return warn("disk", "free some space: Postgres stops when the disk is full", "%s, and %s are free", says, size(free))
	}
	return ok("disk", "%s, and %s are free", says, size(free))
}

// freeSpace returns the free bytes on the disk of the server's files.
func freeSpace(settings []schema.Setting, host string) (free int64, known bool) {
	ip, err := netip.ParseAddr(host)
	if local := strings.HasPrefix(host, "/") || host == "localhost" || err == nil && ip.IsLoopback(); !local {
		return 0, false
	}
	for _, s := range settings {
		if s.Name == "data_directory" {
			var st syscall.Statfs_t
			if err := syscall.Statfs(s.Value, &st); err != nil {
				return 0, false // in a container, or not readable
			}
			return int64(st.Bavail) * int64(st.Bsize), true
		}
	}
	return 0, false
}

// lease checks that a consumer reads the stream.
func (d Database) lease(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	if d.Migrated(ctx, pool) != nil {
		return nil, nil // the migrations have a finding of their own
	}
	streams, err := schema.StreamStatuses(ctx, pool)
	if err != nil {
		return nil, err
	}
	const do = "run weir serve or weir consume"
	for _, s := range streams {
		if s.Name != d.Stream {
			continue
		}
		found := []Finding{ok("lease", "%s holds the lease of stream %s, epoch %d; %s", s.Owner, s.Name, s.Epoch, s.Current())}
		switch {
		case !s.Leased && s.Owner != "":
			found[0] = warn("lease", do+"; a consumer that was only paused finds that its lease is lost, and stops",
				"the lease of stream %s has expired: %s stopped renewing it", s.Name, s.Owner)
		case !s.Leased:
			found[0] = warn("lease", do, "no consumer reads stream %s", s.Name)
		}
		if s.LastEvent != nil { // an old event says nothing about the clock, but a future one does
			found = append(found, clock("clock of the newest event", max(time.Until(*s.LastEvent), 0), 0))
		}
		return found, nil
	}
	return []Finding{warn("lease", do, "stream %s has never been read", d.Stream)}, nil
}

// oldSnapshot is the age from which an open transaction is a warning.
const oldSnapshot = 10 * time.Minute

func snapshots(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	now := time.Now()
	old, err := schema.OldTransactions(ctx, pool, now.Add(-oldSnapshot))
	if err != nil {
		return nil, err
	}
	seesAll, err := schema.CanSeeSessions(ctx, pool)
	if err != nil {
		return nil, err
	}
	switch {
	case len(old) > 0:
	case seesAll:
		return []Finding{ok("old transactions", "no transaction is older than %s", oldSnapshot)}, nil
	default:
		return []Finding{ok("old transactions",
			"no transaction of this role is older than %s; those of other roles are hidden without pg_read_all_stats", oldSnapshot)}, nil
	}
	var found []Finding
	for _, s := range old {
		found = append(found, warn("old transactions", s.What,
			"a transaction has been open for %s: vacuum cannot remove rows that were deleted since", now.Sub(s.Since).Round(time.Second)))
	}
	return found, nil
}

func slots(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	all, err := schema.Slots(ctx, pool)
	if err != nil {
		return nil, err
	}
	return checkSlots(all), nil
}

func checkSlots(all []schema.Slot) (found []Finding) {
	const tooMuch = 5 * giga
	for _, s := range all {
		do := fmt.Sprintf("let its standby or subscriber catch up, or SELECT pg_drop_replication_slot('%s'); max_slot_wal_keep_size limits "+
			"the WAL that a slot keeps", s.Name)
		switch {
		case s.Lost:
			found = append(found, warn("replication slots", do, "%s is lost: its standby or subscriber must start over", s.Name))
		case s.Bytes > tooMuch:
			found = append(found, fail("replication slots", do, "%s keeps %s of WAL: the disk fills up", s.Name, size(s.Bytes)))
		case !s.Active:
			found = append(found, warn("replication slots", do, "%s is inactive and keeps %s of WAL", s.Name, size(s.Bytes)))
		}
	}
	if len(found) == 0 {
		found = []Finding{ok("replication slots", "no slot holds back WAL")}
	}
	return found
}

func indexes(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	broken, err := schema.InvalidIndexes(ctx, pool)
	if err != nil || len(broken) == 0 {
		return []Finding{ok("indexes", "all indexes are valid")}, err
	}
	var found []Finding
	for _, name := range broken {
		found = append(found, warn("indexes", "REINDEX INDEX CONCURRENTLY "+name+", or DROP it if its name ends in _ccnew or _ccold",
			"%s is invalid: no query uses it, and every write maintains it", name))
	}
	return found, nil
}

// notifyTimeout limits the wait for a notification.
const notifyTimeout = 3 * time.Second

// pooler checks whether a pooler is between Weir and Postgres, and whether
// WEIR_POOLER matches it. Without the variable, Weir uses notifications and prepared
// statements, which need a session of its own.
func (d Database) pooler(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	conn, err := pgx.ConnectConfig(ctx, pool.Config().ConnConfig)
	if err != nil {
		return nil, fmt.Errorf("open a second connection: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) // it is over
	server, err := schema.ReadServer(ctx, conn)
	if err != nil {
		return nil, err
	}
	pooled := behindPooler(conn, server)
	switch {
	case d.Pooled && pooled:
		return []Finding{ok("pooler", "in use; with WEIR_POOLER=transaction, Weir keeps no state in its sessions")}, nil
	case d.Pooled:
		return []Finding{ok("pooler",
			"none, although WEIR_POOLER=transaction: Weir works, but polls every second instead of using notifications")}, nil
	}
	waiting, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	err = schema.CheckNotifications(waiting, conn, pool, "weir_doctor_"+strings.ToLower(rand.Text()))
	switch {
	case err != nil && pooled:
		return []Finding{fail("pooler", "set WEIR_POOLER=transaction, or point DATABASE_URL at Postgres itself or at a pooler in session mode",
			"in use, but it keeps no sessions: Weir loses prepared statements and notifications (%s)", err)}, nil
	case err != nil:
		return []Finding{Failed("pooler", "see the Postgres log: Weir needs notifications of new jobs and follows", err)}, nil
	case pooled:
		return []Finding{ok("pooler", "in use; it keeps sessions, and notifications arrive")}, nil
	}
	return []Finding{ok("pooler", "none, and notifications arrive")}, nil
}
