package jobs

import (
	"time"

	"github.com/riverqueue/river"
)

// SendAlert tells the webhook that an alert fires, or that it is resolved. Where
// the webhook is, the worker knows: an address is a secret, and no job carries it.
type SendAlert struct {
	Name     string    `json:"name"`
	Severity string    `json:"severity"`
	Subject  string    `json:"subject,omitempty"` // the stream or queue; empty: the whole
	Message  string    `json:"message"`           // what holds
	Hint     string    `json:"hint"`              // what to look at first
	Since    time.Time `json:"since"`             // when it began to hold
	At       time.Time `json:"at"`                // when it fired, or was resolved
	Resolved bool      `json:"resolved,omitempty"`
}

// Kind names the job.
func (SendAlert) Kind() string { return "send_alert" }

// InsertOpts are the defaults of its inserts. Eight tries take over an hour.
func (m SendAlert) InsertOpts() river.InsertOpts {
	event := "fires"
	if m.Resolved {
		event = "resolved"
	}
	return river.InsertOpts{Queue: QueueAlerts, Priority: 2, MaxAttempts: 8 + Deaths, Tags: tags(m.Severity, m.Name, event)}
}
