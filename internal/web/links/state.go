package links

import (
	"cmp"
	"slices"
	"time"

	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/schema"
)

// streamState is the line with the state of the streams.
type streamState struct {
	Level string         `json:"level"`
	Text  string         `json:"text"`
	Since *web.Timestamp `json:"since,omitempty"` // when the state began; nil: the text has no time
	Gaps  int            `json:"gaps"`            // gaps that may hide shares of the window

	CompleteSince *web.Timestamp `json:"complete_since,omitempty"` // all shares are stored; nil: since the window began
}

// newState describes the stream with the worst state. A database without streams has
// never had a consumer.
func newState(of coverage, now time.Time) streamState {
	all := of.streams
	if len(all) == 0 {
		all = []schema.StreamStatus{{}}
	}
	worst := streamState{}
	for _, st := range all {
		if v := stateOf(st, now); severity(v.Level) > severity(worst.Level) {
			worst = v
		}
	}
	worst.Gaps = len(of.gaps)
	if of.complete != nil {
		worst.CompleteSince = web.NewTimestamp(*of.complete, now)
	}
	return worst
}

// severity returns the rank of a level. No level has the lowest rank.
func severity(level string) int {
	return slices.Index([]string{"", web.LevelGood, web.LevelWait, web.LevelBad}, level)
}

func stateOf(st schema.StreamStatus, now time.Time) streamState {
	name := web.StateName(st)
	s := streamState{Level: web.Level(st), Text: cmp.Or(say("state_"+name), web.PlainLine(st.Current(), web.MaxName))}
	switch last := st.LastEvent; {
	case name == "catching_up" && last != nil:
		s.Text = say("state_behind", duration(now.Sub(*last)))
	case name == "quiet" && last != nil:
		s.Since = web.NewTimestamp(*last, now)
	case name == "quiet", name == "not_connected", name == "silent":
		s.Since = web.NewTimestamp(st.StateSince, now)
	}
	return s
}

// duration formats how far something is behind.
func duration(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return say("duration_s", int(d/time.Second))
	case d < 2*time.Hour:
		return say("duration_min", int(d/time.Minute))
	default:
		return say("duration_h", int(d/time.Hour))
	}
}
