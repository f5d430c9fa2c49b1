package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// follows is the set of accounts that a stream follows. The zero value follows
// everyone.
type follows struct {
	set atomic.Pointer[map[string]bool] // nil: everyone

	limit int  // the maximum number of accounts that the source can request; 0: it can only request everyone
	above bool // too many accounts are followed, so everyone is requested; only filter uses it
}

// includes reports whether an account's events are wanted.
func (f *follows) includes(did string) bool {
	set := f.set.Load()
	return set == nil || (*set)[did]
}

// take sets the accounts to follow.
func (f *follows) take(now schema.Followed) {
	if now.Everyone {
		f.set.Store(nil)
		return
	}
	set := make(map[string]bool, len(now.DIDs))
	for _, did := range now.DIDs {
		set[did] = true
	}
	f.set.Store(&set)
}

// filter returns what to request from the server: the followed accounts, or everyone if there
// are more than the source can request. It requests accounts again only once they are a tenth
// below the limit, so that small changes do not switch the request back and forth. Only one
// goroutine at a time calls it.
func (f *follows) filter(now schema.Followed, collections []string) consumer.Filter {
	limit := f.limit
	if f.above {
		limit -= limit / 10
	}
	f.above = len(now.DIDs) > limit
	if now.Everyone || f.above || f.limit == 0 {
		return consumer.Filter{Collections: collections, Everyone: true}
	}
	return consumer.Filter{Collections: collections, Accounts: now.DIDs}
}

// listen waits for changes of the followed accounts on its own connection. Behind a
// transaction pooler, which does not support that, it polls.
func (p App) listen(ctx context.Context, changed func(context.Context) error) error {
	if p.cfg.pooled() {
		return schema.PollFollows(ctx, p.pool, time.Second, time.Minute, changed)
	}
	conn, err := pgx.ConnectConfig(ctx, p.pool.Config().ConnConfig)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) // the connection is done
	return schema.ListenFollows(ctx, conn, time.Minute, changed)
}

// callTimeout is how long a call of an external service may take.
const callTimeout = 15 * time.Second

// calls returns the limit of external calls, which all processes share.
func (p App) calls() *workers.Calls {
	return &workers.Calls{Pool: p.pool, Slots: p.cfg.APIConcurrency, Spacing: p.cfg.APIInterval, TTL: 2 * callTimeout, Logger: p.log}
}

// Bluesky returns the client of the network's services. retries are the waits
// between the attempts of a call; nil: the workers' waits.
func (p App) Bluesky(retries []time.Duration) (*bluesky.Client, error) {
	cfg := bluesky.Config{AppView: p.cfg.AppView, Directory: p.cfg.Directory, Relays: p.cfg.relayServices(), Mirrors: p.cfg.Mirrors,
		Limit: p.calls().Take, Timeout: callTimeout, Retries: retries, Logger: p.log,
		Registerer: p.metrics, Tracer: p.tracer, UserAgent: userAgent}
	if p.cfg.Identifier != "" {
		cfg.Login = &bluesky.Login{PDS: p.cfg.PDS, Identifier: p.cfg.Identifier, Password: p.cfg.AppPassword}
	}
	return bluesky.New(cfg)
}

// firstWatches adds the watches of WEIR_WATCH if there are no watches yet.
func (p App) firstWatches(ctx context.Context) error {
	if len(p.cfg.Watch) == 0 {
		return nil
	}
	there, err := schema.Watches(ctx, p.pool)
	if err != nil || len(there) > 0 {
		return err
	}
	for _, named := range p.cfg.Watch {
		w, err := p.configuredWatch(named)
		if err != nil {
			return err
		}
		if _, err := p.AddWatch(ctx, w, 0); err != nil {
			return err
		}
	}
	return nil
}

// configuredWatch reads an entry of WEIR_WATCH.
func (p App) configuredWatch(named string) (WatchRequest, error) {
	w, err := p.ParseWatch(named)
	switch {
	case err != nil:
	case w.Account.Name != "":
		err = fmt.Errorf("%s is a name, and its domain may be unreachable when Weir starts: use `weir watch add`, or give the npub",
			w.Account.Name)
	case w.Network != nil:
		err = w.Network.Check()
	}
	if err != nil {
		return w, fmt.Errorf("read WEIR_WATCH: %w", err)
	}
	return w, nil
}

// DID returns the account of a handle, from the database or else from the network.
func (p App) DID(ctx context.Context, actor string) (string, error) {
	if strings.HasPrefix(actor, "did:") {
		return actor, nil
	}
	did, err := schema.FindDID(ctx, p.pool, actor)
	if !errors.Is(err, schema.ErrNoRows) {
		return did, err
	}
	api, err := p.Bluesky(nil)
	if err != nil {
		return "", err
	}
	return api.ResolveHandle(ctx, actor)
}

// A WatchRequest is a watch that a user requests.
type WatchRequest struct {
	Kind   string
	Target string // in the stored spelling; "" if only the account's name is known

	Network workers.Network // nil: that of repositories
	Account workers.Target  // there
}

// ParseWatch parses a request to watch an account. Its errors never contain a secret key.
func (p App) ParseWatch(named string) (WatchRequest, error) {
	network, account, err := p.parts.networks.ParseTarget(named)
	if err != nil {
		return WatchRequest{}, err
	}
	if network != nil {
		return WatchRequest{Kind: schema.WatchFollows, Target: account.Text, Network: network, Account: account}, nil
	}
	t, err := bluesky.ParseTarget(named)
	switch {
	case err != nil:
		return WatchRequest{}, err
	case t.Kind == bluesky.TargetList:
		return WatchRequest{Kind: schema.WatchList, Target: t.URI}, nil
	case t.Kind == bluesky.TargetStarterPack:
		return WatchRequest{Kind: schema.WatchStarterPack, Target: t.URI}, nil
	}
	return WatchRequest{Kind: schema.WatchFollows, Target: t.Actor}, nil
}

// AccountToRead returns the account that a user names, as a backfill takes it: a handle or a
// DID.
func (p App) AccountToRead(named string) (string, error) {
	network, account, err := p.parts.networks.ParseTarget(named)
	switch {
	case err != nil:
		return "", err
	case network == nil:
		return named, nil
	case account.Name != "":
		return "", fmt.Errorf("%s is a name of another network: give the account as `weir watch list` shows it", account.Name)
	}
	return account.DID, nil
}

// AddWatch adds a watch, and stores where its account may be found.
func (p App) AddWatch(ctx context.Context, w WatchRequest, atLeast int) (added bool, err error) {
	err = pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		if len(w.Account.Servers) > 0 {
			if err := w.Network.AddHints(ctx, tx, w.Account); err != nil {
				return err
			}
		}
		added, err = schema.AddWatch(ctx, tx, w.Kind, w.Target, atLeast)
		return err
	})
	return added, err
}
