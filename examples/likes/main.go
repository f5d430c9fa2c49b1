// Command likes is Weir with one more feature: if WEIR_COLLECTIONS includes
// app.bsky.feed.like, it stores the subject of each like in its own table. It
// replaces the weir binary for its database.
package main

import (
	"context"
	"embed"
	"encoding/json"
	"log"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

//go:embed migrations/*.sql
var tables embed.FS

type storeLikes struct{ jobs.Batch }

func (storeLikes) Kind() string { return "store_likes" }

type worker struct {
	river.WorkerDefaults[storeLikes]
	*workers.Projector
}

func (w *worker) Work(ctx context.Context, job *river.Job[storeLikes]) error {
	return w.Project(ctx, job.JobRow, job.Args.Records, func(ctx context.Context, tx pgx.Tx, records []schema.Record) (err error) {
		for i := 0; i < len(records) && err == nil; i++ {
			var like struct{ Subject struct{ URI string } }
			if err = json.Unmarshal(records[i].Record, &like); err == nil { // otherwise this record becomes a dead letter
				_, err = tx.Exec(ctx, `
					INSERT INTO likes VALUES ($1, $2, $3, $4) ON CONFLICT (did, collection, rkey) DO UPDATE SET subject = excluded.subject`,
					records[i].DID, records[i].Collection, records[i].Rkey, like.Subject.URI)
			}
		}
		return err
	})
}

// likes is the feature: a table, a projection, and the worker of its jobs.
func likes() feature.Feature {
	return feature.Feature{Name: "likes", Tables: tables, Open: func(feature.Core) (feature.Parts, error) {
		return feature.Parts{
			Projections: []schema.Projection{{Name: "likes", Collections: []string{"app.bsky.feed.like"}, Tables: []string{"likes"},
				Job: func(b jobs.Batch) river.JobArgs { return storeLikes{b} }}},
			Workers: func(b workers.Bundle) error {
				workers.Add(b, &worker{Projector: b.Projector("likes")})
				return nil
			},
		}, nil
	}}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := app.With(ctx, func(ctx context.Context, weir app.App) error { return weir.Run(ctx) }, likes()); err != nil {
		log.Fatal(err)
	}
}
