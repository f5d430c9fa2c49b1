package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"

	"github.com/weir-social/weir/consumer/firehose"
	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/workers"
)

// signatures holds the verifier of a process: the stream and the retries share its
// keys.
type signatures struct {
	once sync.Once
	one  *firehose.Verifier
	err  error
}

// verifier returns the verifier of the process, or nil if signatures are not checked.
func (s *signatures) verifier(p App) (*firehose.Verifier, error) {
	s.once.Do(func() {
		if p.cfg.Verify != VerifyWhole {
			s.one, s.err = p.newVerifier()
		}
	})
	return s.one, s.err
}

// newVerifier returns a verifier that reads DID documents. These reads have their own
// limits, because the stream waits for them. The limit that processes share is for
// jobs, and a full queue of jobs must not delay the stream.
func (p App) newVerifier() (*firehose.Verifier, error) {
	const timeout = 5 * time.Second
	api, err := bluesky.New(bluesky.Config{AppView: p.cfg.AppView, Directory: p.cfg.Directory, Timeout: timeout, Retries: []time.Duration{},
		Logger: p.log, UserAgent: userAgent})
	if err != nil {
		return nil, err
	}
	key := func(ctx context.Context, did string) (atcrypto.PublicKey, error) {
		key, err := api.SigningKey(ctx, did)
		switch {
		case errors.Is(err, bluesky.ErrGone):
			err = fmt.Errorf("%w: %w: %w", firehose.ErrNoKey, firehose.ErrGone, err)
		case errors.Is(err, bluesky.ErrUncertain):
			err = fmt.Errorf("%w: %w: %w", firehose.ErrNoKey, firehose.ErrUncertain, err)
		case errors.Is(err, bluesky.ErrNoKey):
			err = fmt.Errorf("%w: %w", firehose.ErrNoKey, err)
		}
		return key, err
	}
	return firehose.NewVerifier(firehose.VerifierConfig{
		Key: key, Chained: p.cfg.Verify == VerifyChained, Logger: p.log, Registerer: p.metrics,
	}), nil
}

// readRepository reads the stored collections of a repository that an account has
// signed.
func (p App) readRepository(car []byte, did string, key atcrypto.PublicKey) (workers.Repository, error) {
	return firehose.ReadRepository(car, did, key, p.stored.Stores)
}
