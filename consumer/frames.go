package consumer

import "github.com/weir-social/weir/schema"

// FrameHook is a feature that keeps frames as they were received. Commits keep them.
type FrameHook interface {
	// Beside reports whether a frame is kept although none of its events is stored.
	Beside(m *Message) bool

	// Keep returns what is kept of a frame, of which these events are stored; nil: nothing. The
	// bytes of the frame do not change afterwards.
	Keep(wire *Wire, m *Message, events []Event) any

	// Commit returns what keeps the frames of a batch, in the transaction of its writes.
	Commit(wire *Wire, kept []any, writes []schema.Write) schema.CommitHook
}

// keptOf returns what is kept of some frames.
func keptOf(frames []batchFrame) []any {
	var kept []any
	for i := range frames {
		if k := frames[i].kept; k != nil {
			kept = append(kept, k)
		}
	}
	return kept
}
