package links

import (
	"time"

	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/schema"
)

// emptyView explains why there are no links, and what to do.
type emptyView struct {
	Heading  string
	Text     string
	Progress []string // of what is read, and of the follow lists
	Next     string   // introduces Command
	Command  string
	Link     string // the text of a link to another view; empty: none
	Href     string
}

// newEmpty explains the state of the stream that is closest to delivering links.
func (s *Server) newEmpty(data *pageData) emptyView {
	e := emptyStream(data)
	switch v := data.view; {
	case len(s.activeFilters(v)) > 0 && e.Link != "":
		e = emptyView{
			Heading: say("empty_filtered"), Text: say("empty_filtered_text", v.Words), Link: say("empty_clear"),
			Href: RankingHref(unfiltered(v)),
		}
	case e.Link != "" && v.Name != longestWindow().Name:
		e.Link = say("empty_longer", longestWindow().Name)
		e.Href = RankingHref(v.with(func(v *View) { v.window = longestWindow() }))
	default:
		e.Link = ""
	}
	p := data.progress
	if len(s.activeFilters(data.view)) > 0 {
		return e
	}
	if p.Posts >= schema.ManyPosts {
		e.Progress = append(e.Progress, say("progress_many_posts", web.Grouped(p.Posts)))
	} else if p.Posts > 0 {
		e.Progress = append(e.Progress, say("progress_posts", p.Posts))
	}
	if p.Watches == 0 {
		return e
	}
	switch {
	case p.Problems > 0:
		e.Progress = append(e.Progress, say("progress_problem", p.Problems))
	case p.Unread > 0:
		e.Progress = append(e.Progress, say("progress_unread", p.Unread))
	default:
		e.Progress = append(e.Progress, say("progress_read", p.Accounts))
	}
	if p.Accounts > 0 && p.Read < p.Accounts {
		e.Progress = append(e.Progress, say("progress_backfills", p.Read, p.Accounts))
	} else if p.Accounts > 0 {
		e.Progress = append(e.Progress, say("progress_done"))
	}
	if e.Command == "" {
		e.Next, e.Command = say("command_watches"), "weir watch list"
	}
	return e
}

// emptyStream explains the streams. Link is set if another view may have links.
func emptyStream(data *pageData) emptyView {
	states := make(map[string]bool)
	began, leased := false, false
	for _, st := range data.streams {
		states[st.Current()] = true
		began = began || st.LastEvent != nil
		leased = leased || st.Leased
	}
	e := emptyView{Next: say("command_status"), Command: "weir status"}
	if began {
		e.Link = say("empty_longer")
	}
	words := data.view.Words
	switch {
	case (states[schema.StateLive] || states[schema.StateQuiet]) && !began:
		e = emptyView{Heading: say("empty_started"), Text: say("empty_started_text")}
		if data.follows.Watches == 0 {
			e.Next, e.Command = say("command_follow"), "weir watch add alice.example"
		}
	case states[schema.StateLive] || states[schema.StateQuiet]:
		e = emptyView{Heading: say("empty_nobody", words), Text: say("empty_connected"), Link: e.Link}
	case states[schema.StateCatchingUp] || states[schema.StateDraining]:
		e.Heading, e.Text = say("empty_catching_up"), say("empty_catching_up_text", words)
	case states[schema.StateConnecting]:
		e.Heading, e.Text = say("empty_connecting"), say("empty_connecting_text")
	case states[schema.StateNoNetwork] && leased:
		e.Heading, e.Text = say("empty_no_network"), say("empty_no_network_text", words)
	case states[schema.StateNoNetwork]:
		e.Heading, e.Text, e.Next, e.Command = say("empty_no_network"), say("empty_silent_text"), "", "weir serve"
	case len(data.streams) == 0:
		e = emptyView{Heading: say("empty_nothing"), Text: say("empty_nothing_text"), Next: say("command_start"), Command: "weir serve"}
	case states[schema.StateNoConsumer]:
		e.Heading, e.Text, e.Next, e.Command = say("empty_nobody", words), say("empty_no_consumer_text"), "", "weir serve"
	default:
		e.Heading, e.Text = say("empty_nobody", words), say("empty_other_text")
	}
	return e
}

// longestWindow is the window to try if a shorter one has no link.
func longestWindow() window {
	all := windows()
	return all[len(all)-1]
}

// gapView is an interval whose shares may be missing from the counts.
type gapView struct {
	From, To *web.Timestamp
	Reason   string
	Stream   string // the name of the stream, if there are several streams
	Repair   string // progress of the repair
}

func newGaps(of coverage, at time.Time) (all []gapView) {
	for _, g := range of.gaps {
		view := gapView{
			From: web.NewTimestamp(g.From, at), To: web.NewTimestamp(g.To, at), Reason: web.PlainLine(g.Reason, web.MaxDetail),
			Repair: say("gap_accounts", g.Accounts, g.Done),
		}
		switch {
		case g.Problem != "":
			view.Repair = say("gap_problem")
		case g.Accounts == 0:
			view.Repair = say("gap_waiting")
		}
		if len(of.streams) > 1 {
			view.Stream = web.PlainLine(g.Stream, web.MaxName)
		}
		all = append(all, view)
	}
	return all
}
