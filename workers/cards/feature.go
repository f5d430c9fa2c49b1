package cards

import (
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/internal/links/card"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/workers"
)

// Variables configure the feature.
type Variables struct {
	// Whether the pages of links are fetched for their titles: links that five accounts share,
	// and links that two accounts share without giving a title. At most 1,000 an hour.
	FetchCards bool `env:"WEIR_FETCH_CARDS" envDefault:"true"`
}

// Feature fetches the pages of links.
func Feature() feature.Feature {
	v := &Variables{}
	return feature.Feature{Name: "cards", Config: v, Open: func(core feature.Core) (feature.Parts, error) {
		return feature.Parts{Workers: func(b workers.Bundle) error {
			var client *card.Client
			if v.FetchCards && !core.Simulated {
				client = card.New(card.Config{Turn: hostTurns(b.Pool), UserAgent: core.UserAgent})
			}
			add(b, client)
			return nil
		}}, nil
	}}
}

// queue is the queue of the pages of links: one slow job.
const queue = "cards"

// FetchCardArgs fetches the pages of links that several accounts share, to read their titles. While a page is due, the
// next second adds another job.
type FetchCardArgs struct{}

// Kind names the job.
func (FetchCardArgs) Kind() string { return "fetch_card" }

// InsertOpts are the defaults of its inserts.
func (FetchCardArgs) InsertOpts() river.InsertOpts { return jobs.Periodic(queue, 2, 3) }

// add adds the worker. Without a client it fetches nothing.
func add(b workers.Bundle, client *card.Client) {
	w := &FetchCard{pool: b.Pool, log: b.Logger, client: client, patience: b.JobTimeout / 2}
	workers.Add(b.Interruptible(), w)
	b.Queue(queue, 1)
	if client != nil {
		b.Run(w.enqueue)
	}
}
