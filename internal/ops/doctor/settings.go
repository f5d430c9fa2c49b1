package doctor

import (
	"fmt"
	"strconv"
	"time"

	"github.com/weir-social/weir/schema"
)

// Needs describes what Weir requires of its database.
type Needs struct {
	Connections  int                          // of one process that runs everything
	Pooled       bool                         // a pooler in transaction mode opens them
	Throwaway    bool                         // the data need not survive a crash
	Statement    time.Duration                // the longest statement: the timeout of a job
	Bytes        int64                        // warn if the database is larger
	Keep         time.Duration                // the retention of posts; 0: for ever
	Projected    int                          // relations of the projections' tables, with partitions and indexes
	Transactions int                          // concurrent transactions that use posts
	Stores       func(collection string) bool // reports whether a collection has an entry; nil: all collections have one
}

// settingNames returns the settings that are checked.
func settingNames() []string {
	names := []string{"max_connections", "data_directory"}
	for _, r := range rules(Needs{}, schema.Server{}) {
		names = append(names, r.name)
	}
	return names
}

// rule checks one setting. check returns the level, the problem with the value, and
// the value to set.
type rule struct {
	name  string
	check func(schema.Setting) (level Level, because, set string)
}

// equals requires a value.
func equals(name, value string, otherwise Level, because string) rule {
	return rule{name, func(s schema.Setting) (Level, string, string) {
		if s.Value == value {
			return OK, "", ""
		}
		return otherwise, because, "'" + value + "'"
	}}
}

// atLeast requires an amount of memory, in bytes.
func atLeast(name string, bytes int64, set, because string) rule {
	return rule{name, func(s schema.Setting) (Level, string, string) {
		if amount(s) >= bytes {
			return OK, "", ""
		}
		return Warn, because, set
	}}
}

// timeLimit requires that a time limit is off or long enough. A shorter limit is a
// warning; a limit below tooShort fails.
func timeLimit(name string, enough, tooShort time.Duration, because string) rule {
	return rule{name, func(s schema.Setting) (Level, string, string) {
		switch d := span(s); {
		case d == 0 || d >= enough:
			return OK, "", ""
		case d >= tooShort:
			return Warn, because, "0"
		}
		return Fail, because, "0"
	}}
}

const (
	mega = int64(1) << 20
	giga = int64(1) << 30
)

// rules returns the rules for the settings. Weir runs many short statements, and its
// posts, jobs and links change all day: it depends on autovacuum, on infrequent
// checkpoints and on the isolation level that its locks were written for.
func rules(n Needs, server schema.Server) []rule {
	buffers := rule{"shared_buffers", func(s schema.Setting) (Level, string, string) {
		switch have := amount(s); {
		case have < 128*mega:
			return Warn, "the indexes of a day do not fit", "'512MB'"
		case have < 256*mega && server.Bytes > giga:
			return Warn, "the database has outgrown it", "'1GB'"
		}
		return OK, "", ""
	}}
	memory := rule{"work_mem", func(s schema.Setting) (Level, string, string) {
		switch have := amount(s); {
		case have < 4*mega:
			return Warn, "the ranking is sorted on disk", "'16MB'"
		case have > 256*mega:
			return Warn, "every sort of every connection may use that much: the machine may run out of memory", "'64MB'"
		}
		return OK, "", ""
	}}
	return []rule{
		equals("fsync", "on", Fail, "a crash of the machine corrupts the database"),
		equals("full_page_writes", "on", Fail, "a crash of the machine tears pages and corrupts the database"),
		{"synchronous_commit", func(s schema.Setting) (Level, string, string) {
			if s.Value == "off" {
				return Warn, "a crash loses the last commits, and two consumers may get a lease with the same epoch", "on"
			}
			return OK, "", ""
		}},
		equals("autovacuum", "on", Fail, "the queue and the tables bloat until the server refuses writes"),
		equals("track_counts", "on", Fail, "autovacuum does not know which tables to vacuum"),
		equals("default_transaction_isolation", "read committed", Fail, "Weir would read outdated rows after it waits for a lock"),
		equals("default_transaction_read_only", "off", Fail, "nothing can be written"),
		equals("session_replication_role", "origin", Fail, "triggers do not run: Weir does not notice new watches and gaps"),
		timeLimit("statement_timeout", n.Statement, 10*time.Second, "it cancels statements that a job still waits for"),
		timeLimit("transaction_timeout", n.Statement, 10*time.Second, "it ends transactions that a job still waits for"),
		timeLimit("lock_timeout", n.Statement, 0, "workers that wait for a popular link fail and retry"),
		timeLimit("idle_session_timeout", time.Hour, 0, "it closes the connections that wait for jobs and follows"),
		buffers,
		memory,
		atLeast("max_wal_size", giga, "'4GB'", "checkpoints are triggered by volume instead of time, and each one adds WAL"),
		{"checkpoint_timeout", func(s schema.Setting) (Level, string, string) {
			if span(s) < 5*time.Minute {
				return Warn, "after each checkpoint, every changed page is written to WAL in full", "'15min'"
			}
			return OK, "", ""
		}},
		{"wal_level", func(s schema.Setting) (Level, string, string) {
			if s.Value == "minimal" {
				return Warn, "base backups and standbys are not possible", "replica"
			}
			return OK, "", ""
		}},
		{"TimeZone", func(s schema.Setting) (Level, string, string) {
			switch s.Value {
			case "UTC", "Etc/UTC", "GMT", "Etc/GMT":
				return OK, "", ""
			}
			return Warn, "Weir's days are UTC: the times in psql do not match the partitions", "'UTC'"
		}},
	}
}

// checkSettings returns a finding for every checked setting that the server has.
func checkSettings(n Needs, server schema.Server, settings []schema.Setting) []Finding {
	known := map[string]schema.Setting{}
	for _, s := range settings {
		known[s.Name] = s
	}
	var found []Finding
	for _, r := range rules(n, server) {
		s, exists := known[r.name]
		if !exists {
			continue // only newer servers have this setting
		}
		level, because, set := r.check(s)
		if n.Throwaway && (r.name == "fsync" || r.name == "full_page_writes") {
			level = OK
		}
		f := Finding{Check: "setting " + r.name, Level: level, Message: readable(s)}
		if level != OK {
			f.Message += ": " + because
			f.Do = remedy(s, server.Database, set)
		}
		found = append(found, f)
	}
	if limit, exists := known["max_connections"]; exists {
		found = append(found, checkConnections(n, server, limit))
	}
	return found
}

// remedy returns the statement that changes a setting. A setting must be changed
// where it was set, because the value of a database or role overrides the server's.
func remedy(s schema.Setting, database, set string) string {
	to := s.Name + " = " + set
	switch s.Source {
	case "database":
		return fmt.Sprintf("ALTER DATABASE %q SET %s", database, to)
	case "user":
		return "ALTER ROLE CURRENT_USER SET " + to
	case "database user":
		return fmt.Sprintf("ALTER ROLE CURRENT_USER IN DATABASE %q SET %s", database, to)
	case "client":
		return "remove it from DATABASE_URL"
	case "command line":
		return "start Postgres with -c " + s.Name + "=" + set
	}
	switch s.Name {
	case "shared_buffers", "wal_level":
		return "ALTER SYSTEM SET " + to + ", and restart Postgres"
	}
	return "ALTER SYSTEM SET " + to + "; SELECT pg_reload_conf()"
}

// pooledConnections is how many connections to Postgres a pooler in transaction mode
// needs for one process of Weir.
const pooledConnections = 6

// checkConnections compares the free connections with the number that a process
// opens.
func checkConnections(n Needs, server schema.Server, limit schema.Setting) Finding {
	const check = "setting max_connections"
	all := int(number(limit.Value)) - server.Reserved
	which := "max_connections"
	if server.Limit >= 0 && server.Limit < all {
		all, which = server.Limit, "the limit of this role or database"
	}
	free := all - server.Others
	opens := fmt.Sprintf("a process of Weir opens up to %d", n.Connections)
	if n.Pooled {
		n.Connections = pooledConnections
		opens = fmt.Sprintf("the pooler opens as many as it is configured to, and %d are enough for a process of Weir", pooledConnections)
	}
	says := fmt.Sprintf("%d allowed by %s; others use %d and Weir uses %d now; %s", all, which, server.Others, server.Ours, opens)
	do := fmt.Sprintf("ALTER SYSTEM SET max_connections = %d, and restart Postgres; or lower WEIR_WORKERS",
		server.Others+server.Reserved+3*n.Connections)
	if which != "max_connections" {
		do = fmt.Sprintf("ALTER ROLE … CONNECTION LIMIT %d or ALTER DATABASE … CONNECTION LIMIT; or lower WEIR_WORKERS",
			server.Others+3*n.Connections)
	}
	switch {
	case free < n.Connections:
		return fail(check, do, "%s", says)
	case free < 2*n.Connections:
		return warn(check, do, "%s: a second process needs more", says)
	}
	return ok(check, "%s", says)
}

func number(s string) float64 {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0
	}
	return n
}

// amount returns the value of a memory setting, in bytes.
func amount(s schema.Setting) int64 {
	units := map[string]int64{"B": 1, "kB": 1 << 10, "8kB": 8 << 10, "16MB": 16 * mega, "MB": mega, "GB": giga}
	return int64(number(s.Value)) * units[s.Unit]
}

// span returns the value of a time setting; 0 if it is off.
func span(s schema.Setting) time.Duration {
	units := map[string]time.Duration{"ms": time.Millisecond, "s": time.Second, "min": time.Minute}
	return time.Duration(number(s.Value) * float64(units[s.Unit]))
}

// readable formats the value of a setting.
func readable(s schema.Setting) string {
	if bytes := amount(s); bytes > 0 {
		return size(bytes)
	}
	if _, err := strconv.ParseFloat(s.Value, 64); err == nil && s.Unit != "" {
		if s.Value == "0" {
			return "off"
		}
		return span(s).String()
	}
	return s.Value
}

// size formats a number of bytes.
func size(bytes int64) string {
	switch {
	case bytes >= giga:
		return fmt.Sprintf("%.1f GB", float64(bytes)/float64(giga))
	case bytes >= mega:
		return fmt.Sprintf("%.0f MB", float64(bytes)/float64(mega))
	}
	return fmt.Sprintf("%d kB", bytes>>10)
}
