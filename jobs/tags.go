package jobs

import (
	"regexp"
	"strings"
)

// Tags are words that people read and filter by in River UI: which stream, what
// kind of watch, why a feed is read. InsertOpts sets them, or the inserter where
// the arguments do not say enough. Jobs that SQL adds get theirs in that INSERT.

// TagDeadLetter marks the jobs that retry a dead letter: the trigger on river_job
// settles it when they end.
const TagDeadLetter = "dead-letter"

const tagPeriodic = "periodic"

// Reasons are the tags of backfills, by priority: the first is that of priority 1.
func Reasons() []string { return []string{"gap", "manual", "new-follow", "cold-start"} }

// Reason returns the tag of a backfill's priority; nothing for an unknown one.
func Reason(priority int) []string {
	reasons := Reasons()
	if priority < 1 || priority > len(reasons) {
		return nil
	}
	return reasons[priority-1 : priority : priority]
}

var notInTags = regexp.MustCompile(`[^A-Za-z0-9_-]+`)

// tag makes text a tag that River accepts; "" if it cannot be one. The SQL
// function tag does the same.
func tag(text string) string {
	text = notInTags.ReplaceAllString(text, "-")
	text = strings.Trim(text[:min(len(text), 255)], "-")
	if len(text) < 3 {
		return ""
	}
	return text
}

// tags are those of the texts that can be tags.
func tags(texts ...string) []string {
	found := make([]string, 0, len(texts))
	for _, text := range texts {
		if t := tag(text); t != "" {
			found = append(found, t)
		}
	}
	return found
}
