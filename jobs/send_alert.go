package jobs

import (
	"time"

	"github.com/riverqueue/river"
)

// SendAlert sends the webhook a message that an alert fires or is resolved. The
// worker has the webhook's URL, which is a secret, so no job contains it.
type SendAlert struct {
	Name      string    `json:"name"`
	Severity  string    `json:"severity"`
	Component string    `json:"component,omitempty"` // the stream or queue; empty: all of Weir
	Message   string    `json:"message"`             // what is wrong
	Hint      string    `json:"hint"`                // what to do or read first
	Since     time.Time `json:"since"`               // when the condition began
	At        time.Time `json:"at"`                  // when it fired, or was resolved
	Resolved  bool      `json:"resolved,omitempty"`
}

// Kind names the job.
func (SendAlert) Kind() string { return "send_alert" }

// InsertOpts are the defaults of its inserts. Eight attempts take over an hour.
func (m SendAlert) InsertOpts() river.InsertOpts {
	event := "fires"
	if m.Resolved {
		event = "resolved"
	}
	return river.InsertOpts{Queue: QueueAlerts, Priority: 2, MaxAttempts: 8 + Deaths, Tags: tags(m.Severity, m.Name, event)}
}
