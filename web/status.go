package web

import (
	"time"

	"github.com/weir-social/weir/schema"
)

// Levels colour a status.
const (
	levelGood = "good" // what is shown is up to date
	levelWait = "wait" // it will be, by itself
	levelBad  = "bad"  // it is not, and may need somebody
)

// statusView says in words what holds for a stream.
type statusView struct {
	Version   string // the same as long as only the last event's time changes
	Level     string
	Word      string
	Says      string
	Stream    string // its name, where there are several
	LastEvent *moment
}

// newStatuses describes every stream; a database without any has never had a
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
			view.LastEvent = newMoment(*st.LastEvent, now)
		}
		views = append(views, view)
	}
	return views, nil
}

// describe puts a stream's state into words for a reader. The detail of it, such
// as an error with its addresses, is for operators, who find it in /health.
func describe(st schema.StreamStatus) statusView {
	host := plain(st.Host, maxSite)
	if host == "" {
		host = "the stream"
	}
	var v statusView
	switch state := st.Current(); state {
	case schema.StateNoConsumer:
		v = statusView{Level: levelBad, Word: "No consumer is running", Says: "nothing new is counted until one starts"}
	case schema.StateLive:
		v = statusView{Level: levelGood, Word: "Live", Says: "reading " + host}
	case schema.StateQuiet:
		v = statusView{Level: levelGood, Word: "Quiet", Says: "connected to " + host + ", which has nothing new"}
	case schema.StateCatchingUp:
		v = statusView{Level: levelWait, Word: "Catching up", Says: "reading what " + host + " kept meanwhile; the counts still rise"}
	case schema.StateConnecting:
		v = statusView{Level: levelWait, Word: "Connecting", Says: "nothing new is counted until the stream answers"}
	case schema.StateNoNetwork:
		v = statusView{Level: levelBad, Word: "Not connected", Says: "trying again; nothing new is counted meanwhile"}
		if !st.Leased {
			v.Says = "the consumer has fallen silent; nothing new is counted until it or another one reads on"
		}
	case schema.StateDraining:
		v = statusView{Level: levelWait, Word: "Paused by backpressure", Says: "storing what was read; the stream resumes by itself"}
	default:
		v = statusView{Level: levelWait, Word: plain(state, maxName)}
	}
	return v
}

// emptyView explains why there is no link to show.
type emptyView struct {
	Heading string
	Says    string
	Longer  string // the name of a longer window to try; empty: none
}

// newEmpty speaks for the stream that comes nearest to bringing links.
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
			return emptyView{"Just started", "Weir is connected and listening. The first link appears here by itself, as soon as somebody shares one.", ""}
		}
		return emptyView{nobody, "Weir is connected and listening. The next link that somebody shares appears here by itself.", longer}
	case states[schema.StateCatchingUp] || states[schema.StateDraining]:
		return emptyView{"Catching up", "Weir is reading what it has not seen yet, oldest first. Nothing of it is a link shared in " + w.Words + " so far.", longer}
	case states[schema.StateConnecting]:
		return emptyView{"Connecting", "Weir waits for the stream to answer. Links appear here by themselves once it does and somebody shares one.", longer}
	case states[schema.StateNoNetwork] && leased:
		return emptyView{"Not connected", "Weir cannot reach the stream and keeps trying; nothing needs doing here. No link shared in " + w.Words + " was stored before.", longer}
	case states[schema.StateNoNetwork]:
		return emptyView{"Not connected", "The consumer has fallen silent. Once it is back, or another one is started with “weir serve” or “weir consume”, this page fills by itself.", longer}
	case len(all) == 0:
		return emptyView{"Nothing has been read yet", "Weir waits for its first consumer: “weir serve” runs everything, “weir consume” the consumer alone. This page then fills by itself.", ""}
	case states[schema.StateNoConsumer]:
		return emptyView{nobody, "No consumer is running, so nothing new is counted. Start one with “weir serve” or “weir consume”, and this page fills by itself.", longer}
	default:
		return emptyView{nobody, "The line above says what the stream is doing.", longer}
	}
}
