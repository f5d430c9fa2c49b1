package doctor

import (
	"fmt"
	"strconv"
	"time"

	"github.com/weir-social/weir/schema"
)

// Needs is what Weir asks of its database.
type Needs struct {
	Connections  int           // of one process that runs everything
	Pooled       bool          // a pooler opens them, as many as it is set to, and gives out each for a transaction
	Throwaway    bool          // nothing in it is to outlive a crash
	Statement    time.Duration // how long a statement may have to run: a job's time
	Bytes        int64         // how large the database may get before it is said
	Keep         time.Duration // how long posts are kept; 0: for ever
	Transactions int           // that use posts at one time
}

// settingNames are the settings that are judged.
func settingNames() []string {
	names := []string{"max_connections", "data_directory"}
	for _, r := range rules(Needs{}, schema.Server{}) {
		names = append(names, r.name)
	}
	return names
}

// rule judges one setting. Its judge answers the level, what is wrong with the
// value and the value to set.
type rule struct {
	name  string
	judge func(schema.Setting) (level Level, because, set string)
}

// is demands a value, for a reason.
func is(name, value string, otherwise Level, because string) rule {
	return rule{name, func(s schema.Setting) (Level, string, string) {
		if s.Value == value {
			return OK, "", ""
		}
		return otherwise, because, "'" + value + "'"
	}}
}

// atLeast demands an amount of memory, in bytes.
func atLeast(name string, bytes int64, set, because string) rule {
	return rule{name, func(s schema.Setting) (Level, string, string) {
		if amount(s) >= bytes {
			return OK, "", ""
		}
		return Warn, because, set
	}}
}

// patient demands that a time limit is off, or long enough: a shorter one is a
// warning, one below tooShort fails.
func patient(name string, enough, tooShort time.Duration, because string) rule {
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

// rules are what is asked of the settings. Weir's statements are many and short;
// posts, jobs and links come and go all day: so it lives by autovacuum, by
// checkpoints that are far apart, and by the isolation its locks were written for.
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
			return Warn, "every sort of every connection may take as much: the machine runs out of memory", "'64MB'"
		}
		return OK, "", ""
	}}
	return []rule{
		is("fsync", "on", Fail, "a crash of the machine destroys the database"),
		is("full_page_writes", "on", Fail, "a crash of the machine tears pages, and the database with them"),
		{"synchronous_commit", func(s schema.Setting) (Level, string, string) {
			if s.Value == "off" {
				return Warn, "a crash forgets the last commits, and may give one epoch of a lease to two consumers", "on"
			}
			return OK, "", ""
		}},
		is("autovacuum", "on", Fail, "the queue and the tables bloat, and in the end the server stops taking writes"),
		is("track_counts", "on", Fail, "autovacuum does not know where to go"),
		is("default_transaction_isolation", "read committed", Fail, "what Weir reads after it has waited for a lock would be out of date"),
		is("default_transaction_read_only", "off", Fail, "nothing can be written"),
		is("session_replication_role", "origin", Fail, "triggers do not run: new watches and gaps go unnoticed"),
		patient("statement_timeout", n.Statement, 10*time.Second, "it ends statements that a job still waits for"),
		patient("transaction_timeout", n.Statement, 10*time.Second, "it ends transactions that a job still waits for"),
		patient("lock_timeout", n.Statement, 0, "workers that wait for a popular link fail and try again"),
		patient("idle_session_timeout", time.Hour, 0, "it ends the connections that wait for jobs and follows"),
		buffers,
		memory,
		atLeast("max_wal_size", giga, "'4GB'", "checkpoints come by volume instead of by time, and each makes the log larger"),
		{"checkpoint_timeout", func(s schema.Setting) (Level, string, string) {
			if span(s) < 5*time.Minute {
				return Warn, "after each checkpoint every page goes into the log in full", "'15min'"
			}
			return OK, "", ""
		}},
		{"wal_level", func(s schema.Setting) (Level, string, string) {
			if s.Value == "minimal" {
				return Warn, "neither a base backup nor a standby can be made", "replica"
			}
			return OK, "", ""
		}},
		{"TimeZone", func(s schema.Setting) (Level, string, string) {
			switch s.Value {
			case "UTC", "Etc/UTC", "GMT", "Etc/GMT":
				return OK, "", ""
			}
			return Warn, "Weir's days are UTC: what psql shows does not match the partitions", "'UTC'"
		}},
	}
}

// judgeSettings makes a finding of every setting that the server has.
func judgeSettings(n Needs, server schema.Server, settings []schema.Setting) []Finding {
	known := map[string]schema.Setting{}
	for _, s := range settings {
		known[s.Name] = s
	}
	var found []Finding
	for _, r := range rules(n, server) {
		s, there := known[r.name]
		if !there {
			continue // of a newer server
		}
		level, because, set := r.judge(s)
		if n.Throwaway && (r.name == "fsync" || r.name == "full_page_writes") {
			level = OK
		}
		f := Finding{Check: "setting " + r.name, Level: level, Says: readable(s)}
		if level != OK {
			f.Says += ": " + because
			f.Do = remedy(s, server.Database, set)
		}
		found = append(found, f)
	}
	if most, there := known["max_connections"]; there {
		found = append(found, judgeConnections(n, server, most))
	}
	return found
}

// remedy is what changes a setting: where it comes from is where it has to be
// changed, for a database's own setting hides that of the server.
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
		return "take it out of DATABASE_URL"
	case "command line":
		return "start Postgres with -c " + s.Name + "=" + set
	}
	switch s.Name {
	case "shared_buffers", "wal_level":
		return "ALTER SYSTEM SET " + to + ", and restart Postgres"
	}
	return "ALTER SYSTEM SET " + to + "; SELECT pg_reload_conf()"
}

// fewest is how many connections to Postgres a pooler in transaction mode needs
// for a process of Weir.
const fewest = 6

// judgeConnections compares what there is with what a process opens.
func judgeConnections(n Needs, server schema.Server, most schema.Setting) Finding {
	const check = "setting max_connections"
	all := int(number(most.Value)) - server.Reserved
	which := "max_connections"
	if server.Limit >= 0 && server.Limit < all {
		all, which = server.Limit, "the limit of this role or database"
	}
	free := all - server.Others
	opens := fmt.Sprintf("a process of Weir opens up to %d", n.Connections)
	if n.Pooled {
		n.Connections = fewest
		opens = fmt.Sprintf("the pooler opens as many as it is set to, and %d carry a process of Weir", fewest)
	}
	says := fmt.Sprintf("%d by %s, %d are others' and %d Weir's at this moment; %s", all, which, server.Others, server.Ours, opens)
	do := fmt.Sprintf("ALTER SYSTEM SET max_connections = %d, and restart Postgres; or lower WEIR_WORKERS", server.Others+server.Reserved+3*n.Connections)
	if which != "max_connections" {
		do = fmt.Sprintf("ALTER ROLE … CONNECTION LIMIT %d or ALTER DATABASE … CONNECTION LIMIT; or lower WEIR_WORKERS", server.Others+3*n.Connections)
	}
	switch {
	case free < n.Connections:
		return fail(check, do, "%s", says)
	case free < 2*n.Connections:
		return warn(check, do, "%s: there is no room for a second process", says)
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

// amount is a setting of memory, in bytes.
func amount(s schema.Setting) int64 {
	units := map[string]int64{"B": 1, "kB": 1 << 10, "8kB": 8 << 10, "16MB": 16 * mega, "MB": mega, "GB": giga}
	return int64(number(s.Value)) * units[s.Unit]
}

// span is a setting of time; 0 where it is off.
func span(s schema.Setting) time.Duration {
	units := map[string]time.Duration{"ms": time.Millisecond, "s": time.Second, "min": time.Minute}
	return time.Duration(number(s.Value) * float64(units[s.Unit]))
}

// readable is a value as a person reads it.
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

// size is a number of bytes as a person reads it.
func size(bytes int64) string {
	switch {
	case bytes >= giga:
		return fmt.Sprintf("%.1f GB", float64(bytes)/float64(giga))
	case bytes >= mega:
		return fmt.Sprintf("%.0f MB", float64(bytes)/float64(mega))
	}
	return fmt.Sprintf("%d kB", bytes>>10)
}
