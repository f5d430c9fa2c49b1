package lexicons

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/consumer/firehose"
	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/lexicon"
	"github.com/weir-social/weir/internal/lexicon/verdict"
	"github.com/weir-social/weir/workers"
)

// ResolveLexicon fetches the schema of a configured name. DNS names the account that
// publishes it. That account has a record with the schema, in a commit that it has
// signed.
type ResolveLexicon struct {
	river.WorkerDefaults[ResolveLexiconArgs]
	pool  *pgxpool.Pool
	api   *bluesky.Client
	txt   LookupTXT
	names []string // the names in the configuration
}

// LookupTXT returns the TXT records of a domain name.
type LookupTXT func(ctx context.Context, name string) ([]string, error)

// schemaCollection is the collection of schemas.
const schemaCollection = "com.atproto.lexicon.schema"

// Work stores the schema. If it has changed, the records that were judged with the old
// one are judged again.
func (w *ResolveLexicon) Work(ctx context.Context, job *river.Job[ResolveLexiconArgs]) error {
	nsid := job.Args.NSID
	if !slices.Contains(w.names, nsid) { // only the configuration decides which names are looked up
		return workers.NonRetryable(fmt.Errorf("WEIR_RESOLVE_LEXICONS does not name %s", nsid))
	}
	did, err := w.authority(ctx, nsid)
	if err != nil {
		return err
	}
	key, err := w.api.SigningKey(ctx, did)
	if err != nil {
		return err
	}
	car, err := w.api.RecordProof(ctx, did, schemaCollection, nsid)
	if err != nil {
		return err
	}
	record, err := firehose.ReadRecord(car, did, key, schemaCollection, nsid)
	if err != nil {
		return workers.NonRetryable(err)
	}
	document, err := schemaDocument(record)
	if err == nil && document.NSID != nsid {
		err = fmt.Errorf("it is the schema of %q", document.NSID)
	}
	if err == nil {
		_, err = lexicon.New(record)
	}
	if err != nil {
		return workers.NonRetryable(fmt.Errorf("the schema of %s by %s: %w", nsid, did, err))
	}
	document.Authority = did
	return storeSchemas(ctx, w.pool, river.ClientFromContext[pgx.Tx](ctx), &verdict.Change{
		Source: verdict.SourceResolved, Documents: []verdict.Document{document},
	})
}

// authority returns the account that publishes the schemas of a name's group.
func (w *ResolveLexicon) authority(ctx context.Context, nsid string) (did string, err error) {
	parts := strings.Split(nsid, ".")
	parts = parts[:len(parts)-1]
	slices.Reverse(parts)
	domain := "_lexicon." + strings.Join(parts, ".")
	texts, err := w.txt(ctx, domain)
	if missing, ok := errors.AsType[*net.DNSError](err); ok && missing.IsNotFound {
		return "", workers.NonRetryable(fmt.Errorf("no account publishes %s: %s has no TXT record", nsid, domain))
	}
	if err != nil {
		return "", fmt.Errorf("look up %s: %w", domain, err)
	}
	for _, text := range texts {
		if found, ok := strings.CutPrefix(text, "did="); ok && did == "" {
			did = found
		} else if ok {
			return "", workers.NonRetryable(fmt.Errorf("%s names several accounts", domain))
		}
	}
	if did == "" {
		return "", workers.NonRetryable(fmt.Errorf("no account publishes %s: %s has no TXT record that begins with did=", nsid, domain))
	}
	return did, nil
}

// schemaDocument parses a schema file.
func schemaDocument(raw []byte) (verdict.Document, error) {
	var named struct{ ID string }
	if err := json.Unmarshal(raw, &named); err != nil {
		return verdict.Document{}, fmt.Errorf("read a lexicon: %w", err)
	}
	return verdict.Document{NSID: named.ID, JSON: raw}, nil
}

// storeSchemas changes the stored catalog. If the catalog has changed, it adds the job
// that judges again the records that were judged with the old one.
func storeSchemas(ctx context.Context, pool *pgxpool.Pool, client *river.Client[pgx.Tx], change *verdict.Change) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		version, changed, err := change.Apply(ctx, tx, func(all []verdict.Document) error {
			_, err := load(all)
			if err != nil {
				err = workers.NonRetryable(err)
			}
			return err
		})
		if err != nil || !changed {
			return err
		}
		if _, err := client.InsertTx(ctx, tx, JudgeOutdatedArgs{Catalog: version}, nil); err != nil {
			return fmt.Errorf("enqueue the revalidation: %w", err)
		}
		return nil
	})
}
