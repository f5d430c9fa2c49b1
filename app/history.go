package app

import (
	"context"
	"net/url"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/internal/history"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/workers"
)

// historyAuto is the WEIR_HISTORY with which Weir reads the past of new collections by
// itself.
const historyAuto = "auto"

// storeCollections records which collections the stream brings from now on, and begins to
// read the past of those whose entry keeps them for ever. For collections that expire, the
// stream alone brings everything that is kept, after a while. WEIR_RETENTION=0 by itself
// reads no past, because the posts of a whole network do not fit on most machines.
func (p App) storeCollections(ctx context.Context) error {
	queue, err := workers.Queue(p.pool, p.log)
	if err != nil {
		return err
	}
	var entries, full []string
	for _, e := range p.stored.Entries() {
		entries = append(entries, e.Pattern)
		if e.Explicit && e.Retention == 0 && p.cfg.History == historyAuto {
			full = append(full, e.Pattern)
		}
	}
	return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		if err := history.StoreCollections(ctx, tx, entries, full); err != nil || len(full) == 0 {
			return err
		}
		_, err := queue.InsertTx(ctx, tx, jobs.FillCollections{}, nil)
		return err
	})
}

// Covers reports whether a collection, or all of a prefix, is stored.
func (p App) Covers(name string) bool { return workers.Covers(p.stored, name) }

// relayServices returns the HTTP addresses of the relays. It skips invalid addresses: the
// source reports them.
func (c Config) relayServices() (all []string) {
	for _, raw := range c.Relays {
		u, err := url.Parse(strings.TrimSpace(raw))
		if err != nil || u.Host == "" {
			continue
		}
		scheme := map[string]string{"wss": "https://", "https": "https://", "ws": "http://", "http": "http://"}[u.Scheme]
		if service := scheme + u.Host; scheme != "" && !slices.Contains(all, service) {
			all = append(all, service)
		}
	}
	return all
}
