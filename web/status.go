package web

import (
	"time"

	"github.com/weir-social/weir/schema"
)

// A level sets the colour of a status.
const (
	levelGood = "good" // the ranking is up to date
	levelWait = "wait" // it will be, without help
	levelBad  = "bad"  // it is not, and may need an operator
)

// statusView describes the state of a stream.
type statusView struct {
	Version   string // changes with everything but the time of the last event
	Level     string
	Word      string
	Detail    string
	Stream    string // the name of the stream, if there are several
	LastEvent *timestamp
}

// newStatuses describes every stream. A database without streams has never had a
// consumer.
func newStatuses(all []schema.StreamStatus, now time.Time) ([]statusView, error) {
	if len(all) == 0 {
		all = []schema.StreamStatus{{}}
	}
	views := make([]statusView, 0, len(all))
	for _, st := range all {
		view := describe(st)
		if len(all) > 1 {
			view.Stream = plain(st.Name, maxName)
		}
		var err error
		if view.Version, err = version([]any{view, st.LastEvent != nil}); err != nil {
			return nil, err
		}
		if st.LastEvent != nil {
			view.LastEvent = newTimestamp(*st.LastEvent, now)
		}
		views = append(views, view)
	}
	return views, nil
}

// describe describes the state of a stream for readers. The stored detail, such as an
// error with addresses, is for operators: it is in /health.
func describe(st schema.StreamStatus) statusView {
	host := plain(st.Host, maxSite)
	if host == "" {
		host = "the stream"
	}
	var v statusView
	switch state := st.Current(); state {
	case schema.StateNoConsumer:
		v = statusView{Level: levelBad, Word: "No consumer is running", Detail: "nothing new is counted until one starts"}
	case schema.StateLive:
		v = statusView{Level: levelGood, Word: "Live", Detail: "reading " + host}
	case schema.StateQuiet:
		v = statusView{Level: levelGood, Word: "Quiet", Detail: "connected to " + host + ", which has no new events"}
	case schema.StateCatchingUp:
		v = statusView{Level: levelWait, Word: "Catching up", Detail: "reading older events from " + host + "; the counts are still rising"}
	case schema.StateConnecting:
		v = statusView{Level: levelWait, Word: "Connecting", Detail: "nothing new is counted until the stream responds"}
	case schema.StateNoNetwork:
		v = statusView{Level: levelBad, Word: "Not connected", Detail: "trying again; nothing new is counted meanwhile"}
		if !st.Leased {
			v.Detail = "the consumer has stopped responding; nothing new is counted until it or another one continues"
		}
	case schema.StateDraining:
		v = statusView{Level: levelWait, Word: "Paused by backpressure", Detail: "storing what was read; the stream then resumes automatically"}
	default:
		v = statusView{Level: levelWait, Word: plain(state, maxName)}
	}
	return v
}

// emptyView explains why there are no links.
type emptyView struct {
	Heading string
	Text    string
	Longer  string // the name of a longer window to offer, or empty
}

// newEmpty explains the state of the stream that is closest to delivering links.
func newEmpty(all []schema.StreamStatus, w window) emptyView {
	states := make(map[string]bool)
	began, leased := false, false
	for _, st := range all {
		states[st.Current()] = true
		began = began || st.LastEvent != nil
		leased = leased || st.Leased
	}
	longer := ""
	if names := windows(); began && w.Name != names[len(names)-1].Name {
		longer = names[len(names)-1].Name
	}
	nobody := "Nobody shared a link in " + w.Words
	switch {
	case states[schema.StateLive] || states[schema.StateQuiet]:
		if !began {
			return emptyView{"Just started", "Weir is connected. The first link appears here as soon as somebody shares one.", ""}
		}
		return emptyView{nobody, "Weir is connected. The next link appears here as soon as somebody shares one.", longer}
	case states[schema.StateCatchingUp] || states[schema.StateDraining]:
		return emptyView{"Catching up", "Weir is reading the events that it has missed, oldest first. It has not found a link shared in " + w.Words + " yet.", longer}
	case states[schema.StateConnecting]:
		return emptyView{"Connecting", "Weir is waiting for the stream to respond. New links then appear here automatically.", longer}
	case states[schema.StateNoNetwork] && leased:
		return emptyView{"Not connected", "Weir cannot reach the stream and keeps trying; you need not do anything. It had stored no link shared in " + w.Words + " before.", longer}
	case states[schema.StateNoNetwork]:
		return emptyView{"Not connected", "The consumer has stopped responding. New links appear here once it recovers, or once you start another one with “weir serve” or “weir consume”.", longer}
	case len(all) == 0:
		return emptyView{"Nothing has been read yet", "Weir is waiting for its first consumer: “weir serve” runs everything, “weir consume” runs only the consumer. Links then appear here automatically.", ""}
	case states[schema.StateNoConsumer]:
		return emptyView{nobody, "No consumer is running, so nothing new is counted. Start one with “weir serve” or “weir consume”. Links then appear here automatically.", longer}
	default:
		return emptyView{nobody, "The line above shows the state of the stream.", longer}
	}
}
