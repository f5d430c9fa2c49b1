package web

import (
	"slices"
	"time"

	"github.com/weir-social/weir/schema"
)

// A level sets the colour of a status.
const (
	levelGood = "good" // the ranking is up to date
	levelWait = "wait" // it will be, without intervention
	levelBad  = "bad"  // it is not, and may need an operator
)

// streamState is the line with the state of the streams.
type streamState struct {
	Level string     `json:"level"`
	Text  string     `json:"text"`
	Since *Timestamp `json:"since,omitempty"` // when the state began; nil: the text has no time
	Gaps  int        `json:"gaps"`            // gaps that may hide shares of the window

	CompleteSince *Timestamp `json:"complete_since,omitempty"` // all shares are stored; nil: since the window began
}

// newState describes the stream with the worst state. A database without streams has
// never had a consumer.
func newState(all []schema.StreamStatus, gaps []schema.Gap, complete *time.Time, now time.Time) streamState {
	if len(all) == 0 {
		all = []schema.StreamStatus{{}}
	}
	worst := streamState{}
	for _, st := range all {
		if v := stateOf(st, now); severity(v.Level) > severity(worst.Level) {
			worst = v
		}
	}
	worst.Gaps = len(gaps)
	if complete != nil {
		worst.CompleteSince = NewTimestamp(*complete, now)
	}
	return worst
}

// severity returns the rank of a level. No level has the lowest rank.
func severity(level string) int {
	return slices.Index([]string{"", levelGood, levelWait, levelBad}, level)
}

func stateOf(st schema.StreamStatus, now time.Time) streamState {
	since := NewTimestamp(st.StateSince, now)
	switch state := st.Current(); state {
	case schema.StateNoConsumer:
		return streamState{Level: levelBad, Text: say("state_no_consumer")}
	case schema.StateLive:
		return streamState{Level: levelGood, Text: say("state_live")}
	case schema.StateQuiet:
		if st.LastEvent != nil {
			since = NewTimestamp(*st.LastEvent, now)
		}
		return streamState{Level: levelGood, Text: say("state_quiet"), Since: since}
	case schema.StateCatchingUp:
		if st.LastEvent == nil {
			return streamState{Level: levelWait, Text: say("state_catching_up")}
		}
		return streamState{Level: levelWait, Text: say("state_behind", duration(now.Sub(*st.LastEvent)))}
	case schema.StateConnecting:
		return streamState{Level: levelWait, Text: say("state_connecting")}
	case schema.StateNoNetwork:
		if !st.Leased {
			return streamState{Level: levelBad, Text: say("state_silent"), Since: since}
		}
		return streamState{Level: levelBad, Text: say("state_reconnecting"), Since: since}
	case schema.StateDraining:
		return streamState{Level: levelWait, Text: say("state_draining")}
	default:
		return streamState{Level: levelWait, Text: PlainLine(state, MaxName)}
	}
}

// statusView describes the state of one stream.
type statusView struct {
	Level     string
	Word      string
	Detail    string
	Stream    string // the name of the stream, if there are several streams
	LastEvent *Timestamp
}

// newStatuses describes every stream.
func newStatuses(all []schema.StreamStatus, now time.Time) (views []statusView) {
	for _, st := range all {
		view := describe(st)
		if len(all) > 1 {
			view.Stream = PlainLine(st.Name, MaxName)
		}
		if st.LastEvent != nil {
			view.LastEvent = NewTimestamp(*st.LastEvent, now)
		}
		views = append(views, view)
	}
	return views
}

// describe describes the state of a stream for readers. The stored detail, such as an
// error with addresses, is for operators and is shown in /health.
func describe(st schema.StreamStatus) statusView {
	host := PlainLine(st.Host, maxSite)
	if host == "" {
		host = say("the_stream")
	}
	in := func(level, name string, values ...any) statusView {
		return statusView{Level: level, Word: say("word_" + name), Detail: say("detail_"+name, values...)}
	}
	switch state := st.Current(); state {
	case schema.StateNoConsumer:
		return in(levelBad, "no_consumer")
	case schema.StateLive:
		return in(levelGood, "live", host)
	case schema.StateQuiet:
		return in(levelGood, "quiet", host)
	case schema.StateCatchingUp:
		return in(levelWait, "catching_up", host)
	case schema.StateConnecting:
		return in(levelWait, "connecting")
	case schema.StateNoNetwork:
		v := in(levelBad, "no_network")
		if !st.Leased {
			v.Detail = say("detail_silent")
		}
		return v
	case schema.StateDraining:
		return in(levelWait, "draining")
	default:
		return statusView{Level: levelWait, Word: PlainLine(state, MaxName)}
	}
}
