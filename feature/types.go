package feature

import (
	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/ops/compare"
	"github.com/weir-social/weir/internal/ops/doctor"
	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/internal/ops/trace"
	"github.com/weir-social/weir/internal/web"
)

// Other names of types below internal, which a feature of another program cannot import.
type (
	// Registry has the stored collections.
	Registry = collection.Registry

	// Bluesky calls the services of Bluesky, and of the network of repositories.
	Bluesky = bluesky.Client

	// Table is a table that weir compare compares, and Rows are some that it leaves out.
	Table = compare.Table
	Rows  = compare.Rows

	// Check is a check of weir doctor.
	Check   = doctor.Check
	Finding = doctor.Finding
	Level   = doctor.Level

	// Health is what a feature adds to the report of Weir's health.
	Health    = health.Feature
	Reading   = health.Reading
	Condition = health.Condition
	Figure    = health.Figure

	// Trace is what a feature adds to weir trace.
	Trace            = trace.Feature
	TracedRecord     = trace.Record
	TracedAccount    = trace.AccountTrace
	TracedOther      = trace.Other
	TracedLine       = trace.Line
	TracedSaid       = trace.Said
	TracedStored     = trace.StoredRecord
	TracedTombstone  = trace.Tombstone
	TracedAuthor     = trace.Account
	TracedCollection = trace.Collection
	TracedJob        = trace.Job
	TracedDeadLetter = trace.DeadLetter
	TracedGap        = trace.Gap
	TracedFault      = trace.Fault

	// Tool is a program for operators.
	Tool = web.Tool

	// Page is what a feature adds to the page, the feeds and the API.
	Page          = web.Part
	PageServer    = web.Server
	PageDB        = web.DB
	PageRoute     = web.Route
	PageAPI       = web.API
	PageFront     = web.Front
	PageTexts     = web.Texts
	PageAlternate = web.Alternate
	PageNetwork   = web.Network
	PageOperation = web.Operation
	PageParameter = web.Parameter
)
