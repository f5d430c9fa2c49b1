package jobs

import (
	"regexp"
	"strings"
)

// Tags are shown in River UI, where they filter jobs: the stream, the kind of a
// watch, the reason of a backfill. InsertOpts sets them, or the inserter if the
// arguments are not sufficient. For jobs added by SQL, the INSERT sets them.

// TagDeadLetter marks jobs that retry a dead letter: the trigger on river_job
// settles the dead letter when they end.
const TagDeadLetter = "dead-letter"

// tagPeriodic marks jobs that leave no dead letter when they run out of tries: the next run does the same work.
const tagPeriodic = "periodic"

// Reasons returns the tags of backfills, by priority: the first is that of priority
// 1.
func Reasons() []string { return []string{"gap", "manual", "new-follow", "cold-start"} }

// Reason returns the tag of a backfill's priority, or nil for an unknown priority.
func Reason(priority int) []string {
	reasons := Reasons()
	if priority < 1 || priority > len(reasons) {
		return nil
	}
	return reasons[priority-1 : priority : priority]
}

var notInTags = regexp.MustCompile(`[^A-Za-z0-9_-]+`)

// tag turns text into a tag that River accepts, or "" if that is impossible. The
// SQL function tag does the same.
func tag(text string) string {
	text = notInTags.ReplaceAllString(text, "-")
	text = strings.Trim(text[:min(len(text), 255)], "-")
	if len(text) < 3 {
		return ""
	}
	return text
}

// tags returns the valid tags of texts.
func tags(texts ...string) []string {
	found := make([]string, 0, len(texts))
	for _, text := range texts {
		if t := tag(text); t != "" {
			found = append(found, t)
		}
	}
	return found
}
