package work

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/crashpoint"
	"github.com/weir-social/weir/schema"
)

const (
	orphanAge      = 24 * time.Hour // an object that nothing names is deleted after this time
	segmentSuffix  = ".seg.zst"
	unfinishedFile = ".tmp-"
)

// SealSegment writes open rows into segments.
type SealSegment struct{ worker[SealSegmentArgs] }

// Work seals one segment after another while segments are due. A job that dies leaves at
// most a file.
func (w *SealSegment) Work(ctx context.Context, job *river.Job[SealSegmentArgs]) error {
	of := catalog.OpenStream{Stream: job.Args.Stream, Wire: job.Args.Wire}
	for {
		plan, err := catalog.PlanSegment(ctx, w.pool, of, w.archive.Bytes, w.archive.Age)
		if err != nil || !plan.Due {
			return err
		}
		err = w.seal(ctx, of, plan)
		if errors.Is(err, catalog.ErrSealed) {
			return nil // another process has sealed them
		}
		if err != nil {
			return err
		}
	}
}

// seal writes one segment and its manifest's row.
func (w *SealSegment) seal(ctx context.Context, of catalog.OpenStream, plan catalog.SegmentPlan) error {
	_, sum, err := w.archive.write(ctx, w.pool, plan.Numbers)
	if err != nil {
		return err
	}
	number, err := catalog.NextSegment(ctx, w.pool)
	if err != nil {
		return err
	}
	now, err := schema.Now(ctx, w.pool)
	if err != nil {
		return err
	}
	m := archive.NewManifest(number, of.Stream, of.Wire, sum, *plan.FirstAt, now)
	plan.Describe(&m)
	crashpoint.At(ctx, "seal: file written")
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if err := catalog.StoreSegment(ctx, tx, m, plan.Numbers); err != nil {
			return err
		}
		if _, err := river.ClientFromContext[pgx.Tx](ctx).InsertTx(ctx, tx, SyncSegmentArgs{Segment: number}, nil); err != nil {
			return fmt.Errorf("enqueue sync_segment: %w", err)
		}
		crashpoint.At(ctx, "seal: before the end")
		return nil
	})
}

// spooled returns the path of a segment's file in the spool.
func (a Config) spooled(sha string) string { return filepath.Join(a.Spool, sha+segmentSuffix) }

// write writes a segment of these rows into the spool.
func (a Config) write(ctx context.Context, pool *pgxpool.Pool, rows []int64) (path string, sum archive.Sum, err error) {
	return a.spool(func(file io.Writer) (archive.Sum, error) { return a.fill(ctx, file, pool, rows) })
}

// spool writes a segment into the spool.
func (a Config) spool(fill func(io.Writer) (archive.Sum, error)) (path string, sum archive.Sum, err error) {
	if err := os.MkdirAll(a.Spool, 0o700); err != nil {
		return "", sum, fmt.Errorf("make the folder for segments: %w", err)
	}
	file, err := os.CreateTemp(a.Spool, unfinishedFile)
	if err != nil {
		return "", sum, fmt.Errorf("write a segment: %w", err)
	}
	defer os.Remove(file.Name()) // after the rename, there is no such file
	sum, err = fill(file)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return "", sum, err
	}
	path = a.spooled(sum.SHA256)
	if err := os.Rename(file.Name(), path); err != nil {
		return "", sum, fmt.Errorf("write a segment: %w", err)
	}
	return path, sum, syncFolder(a.Spool)
}

// fill writes the records of these rows.
func (a Config) fill(ctx context.Context, file io.Writer, pool *pgxpool.Pool, rows []int64) (archive.Sum, error) {
	out, err := archive.NewWriter(file)
	if err != nil {
		return archive.Sum{}, err
	}
	err = catalog.ReadOpenRows(ctx, pool, rows, func(packed []byte) error {
		raw, err := archive.UnpackRow(packed)
		if err != nil {
			return err
		}
		for record, err := range archive.Records(raw) {
			if err == nil {
				err = out.Add(record)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return archive.Sum{}, err
	}
	return out.Close()
}

func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err == nil {
		err = errors.Join(folder.Sync(), folder.Close())
	}
	if err != nil {
		return fmt.Errorf("sync a folder: %w", err)
	}
	return nil
}

// open opens the file of a segment. If the file is not in this process's spool, open
// writes it again from its rows. The records are the same. Another version of Weir may
// compress them differently; open then updates the manifest.
func (a Config) open(ctx context.Context, pool *pgxpool.Pool, m *archive.Manifest) (*os.File, error) {
	path := a.spooled(m.SHA256)
	if sha, err := hashFile(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	} else if sha != m.SHA256 {
		rows, err := catalog.SegmentRows(ctx, pool, m.Number)
		if err != nil {
			return nil, err
		}
		var sum archive.Sum
		if path, sum, err = a.write(ctx, pool, rows); err != nil {
			return nil, err
		}
		if sum.Content != m.Content {
			return nil, fmt.Errorf("the rows of segment %d are not those that were sealed", m.Number)
		}
		m.Refile(sum)
	}
	return os.Open(path)
}

// hashFile returns the SHA-256 of a file.
func hashFile(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close() // it was only read
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", fmt.Errorf("read a segment: %w", err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
