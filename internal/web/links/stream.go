package links

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/schema"
)

const (
	heartbeatEvery = 15 * time.Second // a silent stream sends a comment, so that both sides notice a dead connection
	streamPatience = 10 * time.Second // how long a reader may take to receive an event
)

// streamParameters are the parameters of a stream: those of the ranking, without
// pages.
func streamParameters() []string {
	return slices.DeleteFunc(ranking.ParameterNames(), func(name string) bool { return name == "cursor" })
}

// serveStream sends a ranking and its changes as server-sent events, until the client
// disconnects, reads too slowly, or the process stops. A client that reconnects gets a
// snapshot, whatever its Last-Event-ID.
func (s *Server) serveStream(w http.ResponseWriter, r *http.Request) {
	v, err := parseView(r.URL.RawQuery, "window=6h&limit=50", streamParameters(), ranking.DefaultWindow)
	if err != nil {
		s.WriteError(w, r, http.StatusBadRequest, err.Error())
		return
	}
	if err := s.checkWatch(r.Context(), v.Query.Watch); err != nil {
		s.WriteUnreadable(w, r, v, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // otherwise nginx would hold back the events
	if r.Method == http.MethodHead {
		return
	}
	closed, ok := s.OpenStream(r)
	if !ok {
		s.WriteRefused(w, r)
		return
	}
	defer closed()
	reader, err := s.live.subscribe(v)
	if err != nil {
		h.Set("Retry-After", "10")
		s.WriteError(w, r, http.StatusServiceUnavailable, say("error_streams"))
		return
	}
	defer s.live.unsubscribe(reader)
	s.sendEvents(w, r, reader)
}

// checkWatch returns ranking.ErrWatch if no watch has the target.
func (s *Server) checkWatch(ctx context.Context, target string) error {
	if target == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, web.QueryTimeout)
	defer cancel()
	exists, err := schema.HasWatch(ctx, s.DB, target)
	if err == nil && !exists {
		err = ranking.ErrWatch
	}
	return err
}

// sendEvents sends the events that the reader receives. Between two events it uses no
// memory except the reader's queue.
func (s *Server) sendEvents(w http.ResponseWriter, r *http.Request, reader *liveReader) {
	control := http.NewResponseController(w)
	// The server's limit is for a whole response. Here each event has its own.
	inTime := func() { control.SetWriteDeadline(time.Now().Add(streamPatience)) } // without it, the server's limit ends the stream
	defer inTime()                                                                // for the end of the response
	heartbeat := time.NewTimer(heartbeatEvery)
	defer heartbeat.Stop()
	next := []byte("retry: 3000\n\n")
	for {
		inTime()
		if _, err := w.Write(next); err != nil || control.Flush() != nil {
			return
		}
		heartbeat.Reset(heartbeatEvery)
		open := true
		select {
		case <-r.Context().Done():
			return
		case <-s.live.stopping:
			return
		case next, open = <-reader.events:
			if !open {
				return
			}
		case <-heartbeat.C:
			next = []byte(":\n\n")
		}
	}
}
